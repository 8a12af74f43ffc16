// Sends the messages of a group, and receives them in order.
//
//   tidewheel sample node --use fifo > sample.js
//   npm install rocketmq-client-nodejs@1.0.8
//   node sample.js
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
'use strict';

const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const TOPIC = 'sample-node-fifo';
const GROUP = 'sample-node-fifo';
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

  const sent = [];
  for (const step of [ 'created', 'paid', 'shipped' ]) {
    const message = { topic: TOPIC, messageGroup: 'order-7', body: Buffer.from(`order 7 is ${step}`) };
    sent.push((await producer.send(message)).messageId);
    console.log('sent', sent.at(-1));
  }

  const received = [];
  while (!sent.every(one => received.includes(one))) {
    for (const message of await consumer.receive(32, 15_000)) { // no more of a group before these are acknowledged
      console.log('received', message.messageId, message.body.toString());
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
