// Sends two messages that agree with a database: a commit, and a check-back for a commit that never came.
//
//   tidewheel sample node --use transaction > sample.js
//   npm install rocketmq-client-nodejs@1.0.8
//   node sample.js
//
// User: TIDEWHEEL_ACCESS_KEY and TIDEWHEEL_SECRET_KEY in the environment, where the broker asks.
// With TLS it verifies the certificate; its authority: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
'use strict';

const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const TOPIC = 'sample-node-transaction';
const GROUP = 'sample-node-transaction';
const TLS = false;
const { TIDEWHEEL_ACCESS_KEY: accessKey, TIDEWHEEL_SECRET_KEY: accessSecret } = process.env;
const options = {
  endpoints: '127.0.0.1:8081', namespace: '', sslEnabled: TLS,
  sessionCredentials: accessKey && accessSecret ? { accessKey, accessSecret } : undefined,
};

const paid = new Set(); // stands for the table of your database
const checker = {
  async check(message) { // the broker asks about a half that stays open: the database knows
    console.log('asked about', message.messageId);
    if (paid.has(message.body.toString())) return TransactionResolution.COMMIT;
    // The database may still commit: the broker asks again.
    return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
  },
};

async function main() {
  const producer = new Producer({ ...options, topics: [ TOPIC ], checker });
  await producer.startup();
  const consumer = new SimpleConsumer({
    ...options, consumerGroup: GROUP, subscriptions: new Map([[ TOPIC, '*' ]]), awaitDuration: 10_000,
  });
  await consumer.startup();

  // A half: no consumer sees it before its commit.
  async function begin(order) {
    const transaction = producer.beginTransaction();
    const sent = (await producer.send({ topic: TOPIC, body: Buffer.from(order) }, transaction)).messageId;
    console.log('sent', sent);
    return { transaction, sent };
  }

  const first = await begin('order 7 is paid');
  paid.add('order 7 is paid'); // the database commits
  await first.transaction.commit();

  const second = await begin('order 8 is paid');
  paid.add('order 8 is paid'); // the database commits, and then the process dies: the broker asks after 6 s

  const received = [];
  while (!received.includes(first.sent) || !received.includes(second.sent)) {
    for (const message of await consumer.receive(32, 15_000)) { // up to 32 messages, leased for 15 s
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
