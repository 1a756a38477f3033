"""paho_client.py PORT VERSION: publish at each QoS and receive it again, with Eclipse's client. Prints OK at the end."""
import queue
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

port, version = int(sys.argv[1]), int(sys.argv[2])
args = {"client_id": "paho-%d" % version, "protocol": version}
if hasattr(mqtt, "CallbackAPIVersion"):  # paho 2
    args["callback_api_version"] = mqtt.CallbackAPIVersion.VERSION1
client = mqtt.Client(**args)
granted, received, published = queue.Queue(), queue.Queue(), queue.Queue()
client.on_connect = lambda c, *_: c.subscribe([("paho/+", 2), ("paho/#", 1)])
client.on_subscribe = lambda c, u, mid, codes, *_: granted.put([int(getattr(x, "value", x)) for x in codes])
client.on_message = lambda c, u, m: received.put(m)
client.on_publish = lambda c, u, mid, *_: published.put(mid)
client.connect("127.0.0.1", port, keepalive=10)
client.loop_start()
codes = granted.get(timeout=20)
assert codes == [2, 1], "SUBACK %s" % codes

for qos in (0, 1, 2):
    for n in range(20):
        properties = None
        if version == 5:
            properties = Properties(PacketTypes.PUBLISH)
            properties.ContentType = "text/plain"
            properties.ResponseTopic = "reply/here"
            properties.CorrelationData = b"\x00\x01\xff"
            properties.UserProperty = [("unit", "°C"), ("unit", "twice")]
        info = client.publish("paho/%d" % qos, "message %d" % n, qos=qos, properties=properties)
        info.wait_for_publish(timeout=20)
        assert info.is_published(), "no acknowledgement at QoS %d" % qos
        m = received.get(timeout=20)
        # Two subscriptions overlap: one copy, at the highest QoS of both, and not above that of the message.
        assert (m.topic, m.payload.decode(), m.qos, m.retain) == ("paho/%d" % qos, "message %d" % n, qos, False), (m.topic, m.payload, m.qos, m.retain)
        if version == 5:
            got = m.properties
            assert got.ContentType == "text/plain" and got.ResponseTopic == "reply/here", got
            assert got.CorrelationData == b"\x00\x01\xff", got
            assert got.UserProperty == [("unit", "°C"), ("unit", "twice")], got

client.unsubscribe(["paho/+", "paho/#"])
client.disconnect()
client.loop_stop()
assert received.empty(), "an overlapping subscription was delivered twice"
print("OK")
