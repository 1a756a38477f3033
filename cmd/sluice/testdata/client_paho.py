"""client_paho.py TRANSPORT PORT VERSION CA: a round trip at each QoS and a large message with Eclipse's client. Prints OK."""
import queue
import sys

import paho.mqtt.client as mqtt

transport, port, version, ca = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
args = {"client_id": "", "protocol": version, "transport": "websockets" if transport in ("ws", "wss") else "tcp"}
if hasattr(mqtt, "CallbackAPIVersion"):  # paho 2
    args["callback_api_version"] = mqtt.CallbackAPIVersion.VERSION1
client = mqtt.Client(**args)
if transport in ("ws", "wss"):
    client.ws_set_options(path="/mqtt")
if transport in ("tls", "wss"):
    client.tls_set(ca_certs=ca)
base = "pahopy/%s/%d" % (transport, version)
granted, received = queue.Queue(), queue.Queue()
client.on_connect = lambda c, *_: c.subscribe(base + "/+", 2)
client.on_subscribe = lambda c, u, mid, codes, *_: granted.put([int(getattr(x, "value", x)) for x in codes])
client.on_message = lambda c, u, m: received.put(m)
client.connect("127.0.0.1", port, keepalive=10)
client.loop_start()
codes = granted.get(timeout=20)
assert codes == [2], "SUBACK %s" % codes
for payload in [b"small", b"", bytes(range(256)) * 280]:
    for qos in (0, 1, 2):
        info = client.publish("%s/%d" % (base, qos), payload, qos=qos)
        info.wait_for_publish(timeout=20)
        assert info.is_published(), "no acknowledgement at QoS %d" % qos
        m = received.get(timeout=20)
        assert (m.topic, m.payload, m.qos) == ("%s/%d" % (base, qos), payload, qos), (m.topic, len(m.payload), m.qos)
client.disconnect()
client.loop_stop()
assert received.empty(), "delivered twice"
print("OK")
