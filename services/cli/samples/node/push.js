// Calls a function for each message: a push consumer.
//
//   tidewheel sample node --use push > sample.js
//   npm install rocketmq-client-nodejs@1.0.8
//   node sample.js
//
// Its end takes up to half a minute: this client waits for its open long poll.
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
'use strict';

const { ConsumeResult, Producer, PushConsumer } = require('rocketmq-client-nodejs');

const TOPIC = 'sample-node-push';
const GROUP = 'sample-node-push';
const TLS = false;
const { TIDEWHEEL_ACCESS_KEY: accessKey, TIDEWHEEL_SECRET_KEY: accessSecret } = process.env;
const options = {
  endpoints: '127.0.0.1:8081', namespace: '', sslEnabled: TLS,
  sessionCredentials: accessKey && accessSecret ? { accessKey, accessSecret } : undefined,
};

const listener = {
  async consume(message) { // FAILURE or an exception has the message come again
    console.log('received', message.messageId, message.body.toString());
    listener.received();
    return ConsumeResult.SUCCESS; // acknowledges it
  },
};

async function main() {
  const received = new Promise(resolve => { listener.received = resolve; });
  const consumer = new PushConsumer({
    ...options, consumerGroup: GROUP, subscriptions: new Map([[ TOPIC, '*' ]]), messageListener: listener,
  });
  await consumer.startup();
  const producer = new Producer({ ...options, topics: [ TOPIC ] });
  await producer.startup();

  const receipt = await producer.send({ topic: TOPIC, body: Buffer.from('hello from Node') });
  console.log('sent', receipt.messageId);

  await received; // a service waits for its own end here

  await consumer.shutdown();
  await producer.shutdown();
}

main().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
