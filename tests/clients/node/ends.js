// A transactional producer of npm's official client, told line by line what to do; it answers in JSON lines.
//
//   send <topic> <name>            a half whose body and key are <name>
//   end <name> <commit|rollback>   ends it, as often and in whatever order it is told to
//   answer <name> <commit|rollback|unknown|hold>
//                                  what checks about it are told from now on; "hold" waits for another word
//   stop
//
// Transaction.commit() and rollback() may be called again here: the client keeps the receipt.
'use strict';

const { Producer } = require('rocketmq-client-nodejs');
const {
  TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};
const transactions = new Map();
const answers = new Map();
const waiting = new Map();

const checker = {
  async check(message) {
    const name = message.body.toString();
    if (answers.get(name) === 'hold') {
      await new Promise(resolve => waiting.set(name, resolve));
    }
    return RESOLUTIONS[answers.get(name) ?? 'unknown'];
  },
};

const silent = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const producer = new Producer({ endpoints: process.argv[2], namespace: '', checker, logger: silent });

const commands = {
  async send(topic, name) {
    const transaction = producer.beginTransaction();
    const body = Buffer.from(name);
    const receipt = await producer.send({ topic, body, keys: [ name ], tag: '' }, transaction);
    transactions.set(name, transaction);
    return receipt.transactionId;
  },
  async end(name, how) {
    await transactions.get(name)[how]();
    return 'OK';
  },
  async answer(name, how) {
    answers.set(name, how);
    if (how !== 'hold') waiting.get(name)?.();
    return 'OK';
  },
};

async function main() {
  await producer.startup();
  console.log(JSON.stringify({ told: 'started' }));
  for await (const line of require('node:readline').createInterface({ input: process.stdin })) {
    const [ command, ...words ] = line.split(' ');
    if (command === 'stop') break;
    try {
      console.log(JSON.stringify({ told: await commands[command](...words) }));
    } catch (error) {
      console.log(JSON.stringify({ refused: String(error.message ?? error) }));
    }
  }
  await producer.shutdown();
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
