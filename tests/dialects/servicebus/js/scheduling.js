"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, queue, counts, now, advance, refusal, tell } = require("./common");

const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
const HOUR = 3_600_000;

tell({
  async scheduling() {
    const sender = client.createSender(await queue("scheduling"));
    const receiver = client.createReceiver("scheduling", { receiveMode: "receiveAndDelete" });
    const due = new Date((await now()) + HOUR);
    const numbers = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], due);
    const early = await receiver.receiveMessages(2, { maxWaitTimeInMs: 300 });
    const [peeked] = await receiver.peekMessages(1);
    await advance(HOUR);
    const found = await receiver.receiveMessages(2);
    return {
      numbers: numbers.map(String),
      early: early.length,
      peeked: [peeked.state, peeked.sequenceNumber.toString()],
      due: peeked.scheduledEnqueueTimeUtc - due,
      found: found.map((each) => each.body),
      late: found[0].enqueuedTimeUtc - due >= 0,
    };
  },

  async sentWithATime() {
    const sender = client.createSender(await queue("sent-with-a-time"));
    const due = new Date((await now()) + HOUR);
    await sender.sendMessages({ body: "later", scheduledEnqueueTimeUtc: due });
    await sender.sendMessages([{ body: "later too", scheduledEnqueueTimeUtc: due }, { body: 1 }]);
    const before = await counts("sent-with-a-time");
    await advance(HOUR);
    return { before, after: await counts("sent-with-a-time") };
  },

  async cancelling() {
    const sender = client.createSender(await queue("cancelling"));
    const due = new Date((await now()) + HOUR);
    const [first, second] = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], due);
    await sender.cancelScheduledMessages(first);
    const again = await refusal(sender.cancelScheduledMessages([first]));
    const both = await refusal(sender.cancelScheduledMessages([first, second]));
    const left = await counts("cancelling");
    await sender.cancelScheduledMessages([second]);
    return { again, both, left, after: await counts("cancelling") };
  },

  async timeToLive() {
    const sender = client.createSender(await queue("short", { dead_letter_expired: true }));
    await sender.sendMessages({ body: "short", timeToLive: 5_000 });
    const receiver = client.createReceiver("short");
    const [peeked] = await receiver.peekMessages(1);
    await advance(5_000);
    const dead = client.createReceiver("short", { subQueueType: "deadLetter" });
    const [found] = await dead.receiveMessages(1);
    return {
      life: peeked.timeToLive,
      expires: peeked.expiresAtUtc - peeked.enqueuedTimeUtc,
      body: found.body,
      reason: found.deadLetterReason,
    };
  },

  async duplicates() {
    const sender = client.createSender(await queue("duplicates", { duplicate_detection: true }));
    await sender.sendMessages({ body: 1, messageId: "same" });
    await sender.sendMessages([{ body: 2, messageId: "same" }, { body: 3, messageId: "other" }]);
    return await counts("duplicates");
  },
});
