// The clients of npm's rocketmq-client-nodejs, told over stdin what to do, a JSON line each:
//
//   {"id": 7, "verb": "receive", "arguments": {...}}   ->   {"id": 7, "told": ...} or {"id": 7, "refused": "..."}
//
// Answers come when they are there, in any order, so a receive may wait while a send goes on. The verbs are those
// of tests/clients/official.py.
'use strict';

const {
  ConsumeResult, FilterExpression, LitePushConsumerBuilder, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const {
  FilterType,
  TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};
const silent = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const options = { endpoints: process.argv[2], namespace: '', logger: silent };
const accessKey = process.env.TIDEWHEEL_CLIENT_ACCESS_KEY;
if (accessKey) options.sessionCredentials = { accessKey, accessSecret: process.env.TIDEWHEEL_CLIENT_SECRET };

const answers = new Map();
const halves = new Map();
const consumers = [];
const messages = [];

const checker = {
  async check(message) {
    const left = answers.get(message.body.toString()) ?? [ 'unknown' ];
    return RESOLUTIONS[left.length > 1 ? left.shift() : left[0]];
  },
};
const producer = new Producer({ ...options, checker });

function messageOf({ topic, body, tag, keys, message_group, lite_topic, deliver_at_s, priority, properties }) {
  const message = { topic, body: Buffer.from(body), keys: keys ?? [] };
  if (tag !== undefined) message.tag = tag;
  if (message_group !== undefined) message.messageGroup = message_group;
  if (lite_topic !== undefined) message.liteTopic = lite_topic;
  if (deliver_at_s !== undefined) message.deliveryTimestamp = new Date(deliver_at_s * 1000);
  if (priority !== undefined) message.priority = priority;
  if (properties !== undefined) message.properties = new Map(Object.entries(properties));
  return message;
}

function got(message) {
  if (message.corrupted) throw new Error('the message is corrupted');
  return {
    native: messages.push(message) - 1,
    handle: message.receiptHandle,
    message_id: message.messageId,
    body: message.body.toString(),
    attempt: message.deliveryAttempt,
    tag: message.tag ?? '',
    keys: [ ...message.keys ].sort(),
    properties: Object.fromEntries(message.properties),
    message_group: message.messageGroup ?? '',
  };
}

class Listener {
  constructor(plan) {
    this.plan = plan;
    this.calls = new Map();
    this.seen = [];
  }

  async consume(message) {
    const body = message.body.toString();
    const call = { body, attempt: message.deliveryAttempt, message_group: message.messageGroup ?? '' };
    call.lite_topic = message.liteTopic ?? '';
    this.seen.push(Object.assign(call, { began_ms: Date.now(), ended_ms: 0 }));
    const calls = (this.calls.get(body) ?? 0) + 1;
    this.calls.set(body, calls);
    await new Promise(resolve => setTimeout(resolve, this.plan.seconds * 1000));
    call.ended_ms = Date.now();
    const isFailing = calls <= this.plan.failures || body === this.plan.poison;
    return isFailing ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  }
}

async function started(consumer, listener) {
  await consumer.startup();
  return consumers.push({ consumer, listener }) - 1;
}

function subscriptions({ topic, filter, is_sql }) {
  return new Map([[ topic, new FilterExpression(filter, is_sql ? FilterType.SQL : FilterType.TAG) ]]);
}

const verbs = {
  async send(asked) {
    const receipt = await producer.send(messageOf(asked));
    return { message_id: receipt.messageId, recall_handle: receipt.recallHandle ?? '' };
  },
  async recall({ topic, recall_handle }) {
    return (await producer.recallMessage(topic, recall_handle)).messageId;
  },
  async send_half({ topic, name }) {
    const transaction = producer.beginTransaction();
    await producer.send(messageOf({ topic, body: name, keys: [ name ] }), transaction);
    halves.set(name, transaction);
  },
  async end_half({ name, how }) {
    await halves.get(name)[how]();
  },
  async answer_checks({ name, how }) {
    answers.set(name, how);
  },
  async simple(asked) {
    const awaitDuration = asked.await_seconds * 1000;
    return started(new SimpleConsumer({
      ...options, consumerGroup: asked.group, subscriptions: subscriptions(asked), awaitDuration,
    }));
  },
  async push(asked) {
    const messageListener = new Listener(asked.plan);
    return started(new PushConsumer({
      ...options, consumerGroup: asked.group, subscriptions: subscriptions(asked), messageListener,
    }), messageListener);
  },
  async lite_push({ topic, group, plan }) {
    const listener = new Listener(plan);
    const consumer = await new LitePushConsumerBuilder()
      .setClientConfiguration(options)
      .setConsumerGroup(group)
      .bindTopic(topic)
      .setMessageListener(listener)
      .build();
    return consumers.push({ consumer, listener }) - 1;
  },
  async subscribe_lite({ consumer, lite_topic }) {
    await consumers[consumer].consumer.subscribeLite(lite_topic);
  },
  async unsubscribe_lite({ consumer, lite_topic }) {
    await consumers[consumer].consumer.unsubscribeLite(lite_topic);
  },
  async receive({ consumer, count, lease_seconds }) {
    return (await consumers[consumer].consumer.receive(count, lease_seconds * 1000)).map(got);
  },
  async ack({ consumer, native, handle }) {
    messages[native].receiptHandle = handle;
    await consumers[consumer].consumer.ack(messages[native]);
  },
  async change_invisible({ consumer, native, handle, seconds }) {
    messages[native].receiptHandle = handle;
    await consumers[consumer].consumer.changeInvisibleDuration(messages[native], seconds * 1000);
    return messages[native].receiptHandle;
  },
  async seen({ consumer }) {
    return consumers[consumer].listener.seen;
  },
  async close({ consumer }) {
    await consumers[consumer].consumer.shutdown();
  },
};

async function answer({ id, verb, arguments: asked }) {
  try {
    console.log(JSON.stringify({ id, told: (await verbs[verb](asked)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ id, refused: String(error.message ?? error) }));
  }
}

async function main() {
  await producer.startup();
  console.log(JSON.stringify({ id: 0, told: 'started' }));
  for await (const line of require('node:readline').createInterface({ input: process.stdin })) {
    answer(JSON.parse(line));
  }
  await producer.shutdown();
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
