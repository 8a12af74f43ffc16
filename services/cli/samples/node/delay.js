// Sends a message that is delivered in 3 seconds.
//
//   tidewheel sample node --use delay > sample.js
//   npm install rocketmq-client-nodejs@1.0.8
//   node sample.js
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
'use strict';

const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const TOPIC = 'sample-node-delay';
const GROUP = 'sample-node-delay';
const TLS = false;
const { TIDEWHEEL_ACCESS_KEY: accessKey, TIDEWHEEL_SECRET_KEY: accessSecret } = process.env;
const options = {
  endpoints: '127.0.0.1:8081', namespace: '', sslEnabled: TLS,
  sessionCredentials: accessKey && accessSecret ? { accessKey, accessSecret } : undefined,
};

async function main() {
  const producer = new Producer({ ...options, topics: [ TOPIC ] });
  await producer.startup();
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: GROUP, subscriptions: new Map([[ TOPIC, '*' ]]), awaitDuration: 10_000,
  });
  await consumer.startup();

  const due = new Date(Date.now() + 3_000);
  const message = { topic: TOPIC, body: Buffer.from('a reminder from Node'), deliveryTimestamp: due };
  const sent = (await producer.send(message)).messageId;
  console.log('sent', sent);

  const received = [];
  while (!received.includes(sent)) {
    for (const message of await consumer.receive(32, 15_000)) { // up to 32 messages, leased for 15 s
      const late = Date.now() - due;
      console.log('received', message.messageId, message.body.toString(), `${late} ms after it was due`);
      await consumer.ack(message);
      received.push(message.messageId);
    }
  }

  await consumer.shutdown();
  await producer.shutdown();
}

main().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
