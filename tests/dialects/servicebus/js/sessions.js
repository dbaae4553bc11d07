"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, queue, counts, advance, refusal, tell } = require("./common");

const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
const hasty = new ServiceBusClient(connectionString, {
  retryOptions: { maxRetries: 0, timeoutInMs: 700 },
});

/** A queue with sessions: {name: [body, ...]}. */
async function filled(name, sessions, properties = {}) {
  await queue(name, { requires_session: true, ...properties });
  const sender = client.createSender(name);
  const longest = Math.max(...Object.values(sessions).map((each) => each.length));
  for (let at = 0; at < longest; at++) {
    for (const [sessionId, bodies] of Object.entries(sessions)) {
      if (at < bodies.length) await sender.sendMessages({ body: bodies[at], sessionId });
    }
  }
  return name;
}

tell({
  async inOrder() {
    await filled("in-order", { red: [1, 2, 3, 4], blue: [11, 12, 13] });
    const red = await client.acceptSession("in-order", "red");
    const first = await red.receiveMessages(2);
    const abandoned = first[0];
    await red.abandonMessage(abandoned);
    await red.completeMessage(first[1]);
    const rest = await red.receiveMessages(3);
    for (const each of rest) await red.completeMessage(each);
    const told = { id: red.sessionId, first: [], rest: [] };
    told.first = first.map((each) => [each.sessionId, each.body]);
    told.rest = rest.map((each) => [each.body, each.deliveryCount]);
    await red.close();
    return { ...told, counts: await counts("in-order") };
  },

  async nextAvailable() {
    await filled("next-available", { red: [1], blue: [2] });
    const first = await client.acceptNextSession("next-available");
    const second = await client.acceptNextSession("next-available");
    const found = [await first.receiveMessages(1), await second.receiveMessages(1)];
    const told = [
      [first.sessionId, found[0][0].body],
      [second.sessionId, found[1][0].body],
    ];
    await first.close();
    await second.close();
    return told;
  },

  async heldUntilThereIsOne() {
    await queue("held", { requires_session: true });
    const wanted = client.acceptNextSession("held");
    await client.createSender("held").sendMessages({ body: "here", sessionId: "late" });
    const receiver = await wanted;
    const [message] = await receiver.receiveMessages(1);
    await receiver.close();
    return [receiver.sessionId, message.body];
  },

  async noneInTime() {
    await queue("none", { requires_session: true });
    const refused = await refusal(hasty.acceptNextSession("none"));
    await client.createSender("none").sendMessages({ body: "late", sessionId: "s" });
    const receiver = await client.acceptNextSession("none");
    await receiver.close();
    return { refused, then: receiver.sessionId };
  },

  async heldByAnother() {
    await filled("held-by-another", { red: [1] });
    const holder = await client.acceptSession("held-by-another", "red");
    const refused = await refusal(client.acceptSession("held-by-another", "red"));
    await holder.close();
    const second = await client.acceptSession("held-by-another", "red");
    await second.close();
    return { refused, then: second.sessionId };
  },

  async unseen() {
    await queue("unseen", { requires_session: true });
    const receiver = await client.acceptSession("unseen", "new");
    const nothing = await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 });
    await receiver.close();
    return { id: receiver.sessionId, nothing: nothing.length };
  },

  async state() {
    await queue("state", { requires_session: true });
    let receiver = await client.acceptSession("state", "s");
    const before = await receiver.getSessionState();
    await receiver.setSessionState({ step: 2, names: ["a", "ü"] });
    const set = await receiver.getSessionState();
    await receiver.close();
    receiver = await client.acceptSession("state", "s");
    const after = await receiver.getSessionState();
    await receiver.setSessionState(null);
    const cleared = await receiver.getSessionState();
    await receiver.close();
    return { before: before ?? null, set, after, cleared: cleared ?? null };
  },

  async renewing() {
    await filled("renewing-session", { s: [1] }, { lock_ms: 5_000 });
    const receiver = await client.acceptSession("renewing-session", "s");
    const [message] = await receiver.receiveMessages(1);
    const before = receiver.sessionLockedUntilUtc;
    await advance(4_000);
    const until = await receiver.renewSessionLock();
    await advance(4_000);
    await receiver.completeMessage(message);
    const told = { longer: until - before, set: receiver.sessionLockedUntilUtc - until };
    await receiver.close();
    return { ...told, counts: await counts("renewing-session") };
  },

  async lost() {
    await filled("lost", { s: [1] }, { lock_ms: 5_000 });
    const receiver = await client.acceptSession("lost", "s");
    const [message] = await receiver.receiveMessages(1);
    await advance(5_000);
    const told = {
      complete: await refusal(receiver.completeMessage(message)),
      renew: await refusal(receiver.renewSessionLock()),
      state: await refusal(receiver.getSessionState()),
    };
    const other = await client.acceptSession("lost", "s");
    const [again] = await other.receiveMessages(1);
    await other.close();
    return { ...told, count: again.deliveryCount };
  },

  async deferring() {
    await filled("session-deferring", { s: [1, 2] });
    const receiver = await client.acceptSession("session-deferring", "s");
    const [message] = await receiver.receiveMessages(1);
    await receiver.deferMessage(message);
    const [found] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    await receiver.completeMessage(found);
    const peeked = await receiver.peekMessages(10);
    await receiver.close();
    return { body: found.body, peeked: peeked.map((each) => each.body) };
  },

  async peeking() {
    await filled("session-peeking", { red: [1, 2], blue: [11] });
    const receiver = await client.acceptSession("session-peeking", "red");
    const peeked = await receiver.peekMessages(10);
    await receiver.close();
    return peeked.map((each) => [each.sessionId, each.body]);
  },

  async deadLettering() {
    await filled("session-dead", { s: [1] });
    const receiver = await client.acceptSession("session-dead", "s");
    const [message] = await receiver.receiveMessages(1);
    await receiver.deadLetterMessage(message, { deadLetterReason: "bad" });
    await receiver.close();
    const dead = client.createReceiver("session-dead", { subQueueType: "deadLetter" });
    const [found] = await dead.receiveMessages(1);
    await dead.completeMessage(found);
    return [found.body, found.sessionId, found.deadLetterReason];
  },

  async streaming() {
    const bodies = Array.from({ length: 30 }, (_, at) => at);
    await filled("session-streaming", { s: bodies });
    const receiver = await client.acceptSession("session-streaming", "s");
    const found = [];
    await new Promise((done, failed) => {
      const stream = receiver.subscribe({
        async processMessage(message) {
          found.push(message.body);
          if (found.length === 30) stream.close().then(done);
        },
        async processError(args) {
          failed(args.error);
        },
      });
    });
    await receiver.close();
    return { found, counts: await counts("session-streaming") };
  },

  async deleting() {
    await filled("session-deleting", { s: [1, 2] });
    const mode = { receiveMode: "receiveAndDelete" };
    const receiver = await client.acceptSession("session-deleting", "s", mode);
    const found = await receiver.receiveMessages(2);
    await receiver.close();
    return { found: found.map((each) => each.body), counts: await counts("session-deleting") };
  },

  async wrongKind() {
    await queue("with-sessions", { requires_session: true });
    await queue("without-sessions");
    return {
      send: await refusal(client.createSender("with-sessions").sendMessages({ body: 1 })),
      receive: await refusal(client.createReceiver("with-sessions").receiveMessages(1)),
      session: await refusal(client.acceptSession("without-sessions", "s")),
    };
  },

  async manyAtOnce() {
    const names = Object.fromEntries(Array.from({ length: 10 }, (_, at) => [`s${at}`, [at]]));
    await filled("many-at-once", names);
    const receivers = await Promise.all(
      Object.keys(names).map(() => client.acceptNextSession("many-at-once")),
    );
    const held = receivers.map((each) => each.sessionId).sort();
    await Promise.all(receivers.map((each) => each.close()));
    return held;
  },
});
