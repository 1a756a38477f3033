// client_mqttjs.js TRANSPORT PORT VERSION CA: a round trip at each QoS and a large message with MQTT.js. Prints OK.
'use strict'
const assert = require('assert')
const fs = require('fs')
const mqtt = require(require.resolve('mqtt', { paths: [process.env.NODE_PATH] }))

const [transport, port, version, ca] = process.argv.slice(2)
const scheme = { tcp: 'mqtt', tls: 'mqtts', ws: 'ws', wss: 'wss' }[transport]
const base = `mqttjs/${transport}/${version}`
const payloads = [Buffer.from('small'), Buffer.alloc(0), Buffer.from(Array.from({ length: 70000 }, (_, i) => i % 251))]

async function main () {
  const client = await mqtt.connectAsync(`${scheme}://127.0.0.1:${port}/mqtt`, {
    protocolVersion: Number(version), clean: true, ca: fs.readFileSync(ca), reconnectPeriod: 0, connectTimeout: 20000
  })
  const received = []
  let wake = () => {}
  client.on('message', (topic, payload, packet) => { received.push({ topic, payload, qos: packet.qos }); wake() })
  const [grant] = await client.subscribeAsync(`${base}/+`, { qos: 2 })
  assert.strictEqual(grant.qos, 2)
  for (const payload of payloads) {
    for (const qos of [0, 1, 2]) {
      await client.publishAsync(`${base}/${qos}`, payload, { qos })
      while (received.length === 0) await new Promise(resolve => { wake = resolve })
      const m = received.shift()
      assert.deepStrictEqual([m.topic, m.qos, m.payload.equals(payload)], [`${base}/${qos}`, qos, true])
    }
  }
  await client.endAsync()
  assert.strictEqual(received.length, 0)
  console.log('OK')
}

setTimeout(() => { console.error('nothing for 40 s'); process.exit(1) }, 40000).unref()
main().catch(err => { console.error(err); process.exit(1) })
