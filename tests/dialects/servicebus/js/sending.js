"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, queue, counts, refusal, tell } = require("./common");

const once = { retryOptions: { maxRetries: 0 } };
const client = new ServiceBusClient(connectionString, once);

/** What is in a queue, taken out. */
async function taken(name, count) {
  const receiver = client.createReceiver(name, { receiveMode: "receiveAndDelete" });
  const found = [];
  while (found.length < count) found.push(...(await receiver.receiveMessages(count)));
  await receiver.close();
  return found;
}

tell({
  async single() {
    const sender = client.createSender(await queue("single"));
    await sender.sendMessages({ body: "one", messageId: "m-1" });
    await sender.close();
    return (await taken("single", 1)).map((each) => [each.messageId, each.body]);
  },

  async array() {
    const sender = client.createSender(await queue("array"));
    await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    return (await taken("array", 3)).map((each) => each.body);
  },

  async batch() {
    const sender = client.createSender(await queue("batch"));
    const batch = await sender.createMessageBatch();
    for (let at = 0; at < 100; at++) batch.tryAddMessage({ body: at, subject: `s${at}` });
    await sender.sendMessages(batch);
    const found = await taken("batch", 100);
    return { most: batch.maxSizeInBytes, found: found.map((each) => [each.body, each.subject]) };
  },

  async fullBatch() {
    const sender = client.createSender(await queue("full", { max_message_bytes: 50_000 }));
    const batch = await sender.createMessageBatch();
    let added = 0;
    while (batch.tryAddMessage({ body: Buffer.alloc(10_000, added) })) added++;
    await sender.sendMessages(batch);
    return { most: batch.maxSizeInBytes, added, active: (await counts("full")).active };
  },

  async noId() {
    const sender = client.createSender(await queue("noid"));
    await sender.sendMessages([{ body: 1 }, { body: 2 }]);
    await sender.sendMessages({ body: 3 });
    return (await taken("noid", 3)).map((each) => each.messageId);
  },

  async oversize() {
    const sender = client.createSender(await queue("oversize", { max_message_bytes: 50_000 }));
    const refused = await refusal(sender.sendMessages({ body: Buffer.alloc(60_000) }));
    await sender.sendMessages({ body: "goes on" });
    return { refused, bodies: (await taken("oversize", 1)).map((each) => each.body) };
  },

  async oversizeBatch() {
    const sender = client.createSender(await queue("oversizes", { max_message_bytes: 50_000 }));
    const half = { body: Buffer.alloc(30_000) };
    const refused = await refusal(sender.sendMessages([half, half]));
    return { refused, active: (await counts("oversizes")).active };
  },

  async longId() {
    const sender = client.createSender(await queue("longid"));
    const long = "x".repeat(129);
    const asked = [
      await refusal(sender.sendMessages({ body: 1, sessionId: "a", partitionKey: "b" })),
      await refusal(sender.sendMessages({ body: 1, messageId: long })),
    ];
    return { asked, active: (await counts("longid")).active };
  },

  async missing() {
    return {
      send: await refusal(client.createSender("nowhere").sendMessages({ body: 1 })),
      receive: await refusal(client.createReceiver("nowhere").receiveMessages(1)),
      peek: await refusal(client.createReceiver("nowhere").peekMessages(1)),
      session: await refusal(client.acceptNextSession("nowhere")),
    };
  },

  async disabled() {
    await queue("disabled", { status: "disabled" });
    return {
      send: await refusal(client.createSender("disabled").sendMessages({ body: 1 })),
      receive: await refusal(client.createReceiver("disabled").receiveMessages(1)),
    };
  },

  async wrongKey() {
    await queue("guarded");
    const wrong = connectionString.replace("SharedAccessKey=SAS_KEY_VALUE", "SharedAccessKey=no");
    const other = new ServiceBusClient(wrong, once);
    const told = {
      send: await refusal(other.createSender("guarded").sendMessages({ body: 1 })),
      receive: await refusal(other.createReceiver("guarded").receiveMessages(1)),
    };
    await other.close();
    return told;
  },

  async thousand() {
    const sender = client.createSender(await queue("thousand"));
    const sends = [];
    for (let at = 0; at < 1000; at++) sends.push(sender.sendMessages({ body: at }));
    await Promise.all(sends);
    return (await taken("thousand", 1000)).map((each) => each.body);
  },

  async atOnce() {
    const names = await Promise.all(Array.from({ length: 20 }, (_, at) => queue(`at-once-${at}`)));
    await Promise.all(
      names.map((name) => client.createSender(name).sendMessages([{ body: name }, { body: 2 }])),
    );
    const found = await Promise.all(names.map((name) => taken(name, 2)));
    return found.map((each) => each[0].body);
  },
});
