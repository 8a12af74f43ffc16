// Cancels two timers: one by its recall handle, one by a key of your own.
//
//   tidewheel sample node --use cancel > sample.js
//   npm install rocketmq-client-nodejs@1.0.8
//   node sample.js
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
'use strict';

const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const TOPIC = 'sample-node-cancel';
const GROUP = 'sample-node-cancel';
const TLS = false;
const { TIDEWHEEL_ACCESS_KEY: accessKey, TIDEWHEEL_SECRET_KEY: accessSecret } = process.env;
const options = {
  endpoints: '127.0.0.1:8081', namespace: '', sslEnabled: TLS,
  sessionCredentials: accessKey && accessSecret ? { accessKey, accessSecret } : undefined,
};

// A message that is delivered in half an hour, unless it is cancelled.
function timer(text, properties = {}) {
  const deliveryTimestamp = new Date(Date.now() + 1_800_000);
  const body = Buffer.from(text);
  return { topic: TOPIC, body, deliveryTimestamp, properties: new Map(Object.entries(properties)) };
}

async function main() {
  const producer = new Producer({ ...options, topics: [ TOPIC ] });
  await producer.startup();
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: GROUP, subscriptions: new Map([[ TOPIC, '*' ]]), awaitDuration: 10_000,
  });
  await consumer.startup();

  const receipt = await producer.send(timer('order 7 has timed out'));
  await producer.recallMessage(TOPIC, receipt.recallHandle); // throws unless the message will not arrive
  console.log('cancelled', receipt.messageId);

  await producer.send(timer('order 8 has timed out', { TW_TIMER_KEY: 'order:8' }));
  const properties = new Map([[ 'TW_TIMER_CANCEL', 'order:8' ]]); // in the same step, from any process
  const paid = { topic: TOPIC, body: Buffer.from('order 8 is paid'), properties };
  const sent = (await producer.send(paid)).messageId;
  console.log('sent', sent);

  const received = [];
  while (!received.includes(sent)) {
    for (const message of await consumer.receive(32, 15_000)) { // up to 32 messages, leased for 15 s
      const verdict = message.properties.get('TW_TIMER_VERDICT');
      console.log('received', message.messageId, message.body.toString(), verdict);
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
