"use strict";

const { AzureLogger, setLogLevel } = require("@azure/logger");
const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, queue, counts, advance, refusal, tell } = require("./common");

const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
const brief = { maxWaitTimeInMs: 300 };
const warnings = [];
setLogLevel("warning");
AzureLogger.log = (...words) => warnings.push(words.join(" "));

/** A queue with messages, a receiver of it, and the first of them. */
async function locked(name, { bodies = ["first"], ...properties } = {}) {
  await queue(name, properties);
  const sender = client.createSender(name);
  await sender.sendMessages(bodies.map((body) => ({ body, messageId: `m-${body}` })));
  const receiver = client.createReceiver(name);
  const [message] = await receiver.receiveMessages(1);
  return { sender, receiver, message };
}

async function next(receiver) {
  const [message] = await receiver.receiveMessages(1);
  return message;
}

tell({
  async deleting() {
    await client.createSender(await queue("deleting")).sendMessages([{ body: 1 }, { body: 2 }]);
    const receiver = client.createReceiver("deleting", { receiveMode: "receiveAndDelete" });
    const found = await receiver.receiveMessages(2);
    const told = found.map((each) => [each.body, each.deliveryCount, each.lockToken ?? null]);
    return { told, counts: await counts("deleting") };
  },

  async completing() {
    const { receiver, message } = await locked("completing");
    const before = await counts("completing");
    await receiver.completeMessage(message);
    return {
      state: message.state,
      count: message.deliveryCount,
      sequence: message.sequenceNumber.toString(),
      lock: message.lockToken,
      left: message.lockedUntilUtc - message.enqueuedTimeUtc,
      before,
      after: await counts("completing"),
      again: await refusal(receiver.completeMessage(message)),
    };
  },

  async abandoning() {
    const { receiver, message } = await locked("abandoning", { bodies: ["first", "second"] });
    await receiver.abandonMessage(message, { why: "later", times: 2 });
    const again = await next(receiver);
    return [again.body, again.deliveryCount, again.applicationProperties];
  },

  async tooOften() {
    let { receiver, message } = await locked("too-often", { max_delivery: 2 });
    await receiver.abandonMessage(message);
    message = await next(receiver);
    await receiver.abandonMessage(message);
    const dead = await next(client.createReceiver("too-often", { subQueueType: "deadLetter" }));
    return { body: dead.body, reason: dead.deadLetterReason, counts: await counts("too-often") };
  },

  async deferring() {
    const { receiver, message } = await locked("deferring");
    await receiver.deferMessage(message, { step: "one" });
    const numbers = message.sequenceNumber;
    const nobody = await receiver.receiveMessages(1, brief);
    const [peeked] = await receiver.peekMessages(1);
    const [found] = await receiver.receiveDeferredMessages(numbers);
    await receiver.abandonMessage(found);
    const [again] = await receiver.receiveDeferredMessages([numbers]);
    await receiver.completeMessage(again);
    return {
      nobody: nobody.length,
      peeked: peeked.state,
      state: found.state,
      body: found.body,
      properties: found.applicationProperties,
      again: again.deliveryCount,
      missing: await refusal(receiver.receiveDeferredMessages(numbers)),
      counts: await counts("deferring"),
    };
  },

  async deferredDeleting() {
    const { receiver, message } = await locked("deferred-deleting");
    await receiver.deferMessage(message);
    const other = client.createReceiver("deferred-deleting", { receiveMode: "receiveAndDelete" });
    const [found] = await other.receiveDeferredMessages(message.sequenceNumber);
    return { body: found.body, counts: await counts("deferred-deleting") };
  },

  async deadLettering() {
    const { receiver, message } = await locked("dead-lettering");
    await receiver.deadLetterMessage(message, {
      deadLetterReason: "bad address",
      deadLetterErrorDescription: "no such street",
      seen: 3,
    });
    const other = client.createReceiver("dead-lettering", { subQueueType: "deadLetter" });
    const dead = await next(other);
    await other.completeMessage(dead);
    return {
      id: dead.messageId,
      body: dead.body,
      reason: dead.deadLetterReason,
      text: dead.deadLetterErrorDescription,
      properties: dead.applicationProperties,
      counts: await counts("dead-lettering"),
    };
  },

  async deadLetteringWithoutReason() {
    const { receiver, message } = await locked("no-reason");
    await receiver.deadLetterMessage(message);
    const dead = await next(client.createReceiver("no-reason", { subQueueType: "deadLetter" }));
    return [dead.body, dead.deadLetterReason ?? null, dead.deadLetterErrorDescription ?? null];
  },

  async lockLost() {
    const { receiver, message } = await locked("lock-lost", { lock_ms: 5_000 });
    await advance(5_000);
    const told = {
      complete: await refusal(receiver.completeMessage(message)),
      renew: await refusal(receiver.renewMessageLock(message)),
    };
    const again = await next(receiver);
    await receiver.completeMessage(again);
    return { ...told, count: again.deliveryCount, counts: await counts("lock-lost") };
  },

  async renewing() {
    const { receiver, message } = await locked("renewing", { lock_ms: 5_000 });
    const before = message.lockedUntilUtc;
    await advance(4_000);
    const until = await receiver.renewMessageLock(message);
    await advance(4_000);
    await receiver.completeMessage(message);
    return { longer: until - before, set: message.lockedUntilUtc - until };
  },

  async settlingElsewhere() {
    const { receiver, message } = await locked("elsewhere");
    await receiver.close();
    const other = client.createReceiver("elsewhere");
    const told = await refusal(other.completeMessage(message));
    return { told, counts: await counts("elsewhere") };
  },

  async draining() {
    await client.createSender(await queue("draining")).sendMessages([{ body: 1 }, { body: 2 }]);
    const receiver = client.createReceiver("draining");
    const first = await receiver.receiveMessages(5, { maxWaitTimeInMs: 2_000 });
    await client.createSender("draining").sendMessages({ body: 3 });
    const between = await counts("draining");
    const second = await receiver.receiveMessages(5, brief);
    for (const each of [...first, ...second]) await receiver.completeMessage(each);
    const none = await receiver.receiveMessages(5, brief);
    return {
      first: first.map((each) => each.body),
      between,
      second: second.map((each) => each.body),
      none: none.length,
      after: await counts("draining"),
      warnings: warnings.filter((each) => each.includes("drain")),
    };
  },

  async streaming() {
    const bodies = Array.from({ length: 50 }, (_, at) => at);
    await queue("streaming");
    const sender = client.createSender("streaming");
    await sender.sendMessages(bodies.slice(0, 25).map((body) => ({ body })));
    const receiver = client.createReceiver("streaming");
    const found = [];
    const errors = [];
    await new Promise((done) => {
      const stream = receiver.subscribe(
        {
          async processMessage(message) {
            found.push(message.body);
            if (found.length === 25) {
              await sender.sendMessages(bodies.slice(25).map((body) => ({ body })));
            }
            if (found.length === 50) stream.close().then(done);
          },
          async processError(args) {
            errors.push(String(args.error));
          },
        },
        { maxConcurrentCalls: 4 },
      );
    });
    await receiver.close();
    return { found, errors, counts: await counts("streaming") };
  },

  async failingHandler() {
    await queue("failing");
    await client.createSender("failing").sendMessages({ body: "hard" });
    const receiver = client.createReceiver("failing");
    const seen = [];
    const errors = [];
    await new Promise((done) => {
      receiver.subscribe({
        async processMessage(message) {
          seen.push(message.deliveryCount);
          if (seen.length < 3) throw new Error("not yet");
          done();
        },
        async processError(args) {
          errors.push([args.errorSource, args.error.message]);
        },
      });
    });
    await receiver.close();
    return { seen, errors, counts: await counts("failing") };
  },

  async iterating() {
    await client.createSender(await queue("iterating")).sendMessages([{ body: 1 }, { body: 2 }]);
    const receiver = client.createReceiver("iterating");
    const found = [];
    for await (const message of receiver.getMessageIterator()) {
      found.push(message.body);
      await receiver.completeMessage(message);
      if (found.length === 2) break;
    }
    await receiver.close();
    return { found, counts: await counts("iterating") };
  },

  async peeking() {
    const { receiver, sender, message } = await locked("peeking", { bodies: ["a", "b", "c"] });
    const second = await next(receiver);
    await receiver.deferMessage(second);
    const soon = new Date(Date.now() + 365 * 86_400_000);
    await sender.scheduleMessages({ body: "d" }, soon);
    const all = await receiver.peekMessages(10, { fromSequenceNumber: message.sequenceNumber });
    const turns = [];
    for (let at = 0; at < 4; at++) {
      const [each] = await receiver.peekMessages(1, at ? {} : {
        fromSequenceNumber: message.sequenceNumber,
      });
      turns.push(each.body);
    }
    await receiver.completeMessage(message);
    const other = client.createReceiver(await queue("peeking-nothing"));
    return {
      all: all.map((each) => [each.body, each.state, each.deliveryCount]),
      turns,
      nothing: await other.peekMessages(5),
    };
  },

  async competing() {
    await queue("competing");
    const receivers = [1, 2].map(() => client.createReceiver("competing"));
    const found = [[], []];
    const all = new Promise((done) => {
      receivers.forEach((receiver, at) =>
        receiver.subscribe({
          async processMessage(message) {
            found[at].push(message.body);
            if (found[0].length + found[1].length === 20) done();
          },
          async processError() {},
        }),
      );
    });
    const sender = client.createSender("competing");
    for (let body = 0; body < 20; body++) await sender.sendMessages({ body });
    await all;
    await Promise.all(receivers.map((each) => each.close()));
    return { found, counts: await counts("competing") };
  },
});
