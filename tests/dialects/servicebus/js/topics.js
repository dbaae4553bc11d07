"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, call, refusal, tell } = require("./common");

const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });

/** Makes a topic with a subscription that gets everything. */
async function topic(name, properties = {}) {
  await call("PUT", `topics/${name}`, {});
  await call("PUT", `topics/${name}/subscriptions/s`, properties);
  return name;
}

async function received(name, count) {
  const receiver = client.createReceiver(name, "s", { receiveMode: "receiveAndDelete" });
  const found = [];
  while (found.length < count) {
    found.push(...(await receiver.receiveMessages(count - found.length)));
  }
  found.push(...(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 })));
  await receiver.close();
  return found;
}

tell({
  async rules() {
    const manager = client.createRuleManager(await topic("rules"), "s");
    const listed = async () => {
      const found = [];
      for await (const rule of manager.listRules()) found.push(rule);
      return found.filter((each) => each !== undefined); // which it gives where there is none
    };
    const before = await listed();
    await manager.deleteRule("$Default");
    const none = await listed();
    await manager.createRule("red", { sqlExpression: "colour = 'red'" }, { sqlExpression: "SET seen = TRUE" });
    await manager.createRule("exact", { subject: "s", applicationProperties: { n: 5 } });
    const sender = client.createSender("rules");
    await sender.sendMessages([
      { body: "red", applicationProperties: { colour: "red" } },
      { body: "blue", applicationProperties: { colour: "blue" } },
      { body: "exact", subject: "s", applicationProperties: { n: 5 } },
    ]);
    const found = await received("rules", 2);
    return {
      before: before.map((each) => [each.name, each.filter]),
      none: none.length,
      after: (await listed()).map((each) => [each.name, each.filter, each.action]),
      found: found.map((each) => [each.body, each.applicationProperties]),
    };
  },

  async refusals() {
    const manager = client.createRuleManager(await topic("refusals"), "s");
    return {
      taken: await refusal(manager.createRule("$Default", { sqlExpression: "1 = 1" })),
      wrong: await refusal(manager.createRule("wrong", { sqlExpression: "colour = = 1" })),
      missing: await refusal(manager.deleteRule("missing")),
    };
  },

  async settling() {
    await topic("settling", { max_delivery: 1 });
    const sender = client.createSender("settling");
    await sender.sendMessages([{ body: 1 }, { body: 2 }]);
    const receiver = client.createReceiver("settling", "s");
    const [first, second] = await receiver.receiveMessages(2);
    await receiver.completeMessage(first);
    await receiver.abandonMessage(second);
    const dead = client.createReceiver("settling", "s", { subQueueType: "deadLetter" });
    const [letter] = await dead.receiveMessages(1);
    return [letter.body, letter.deadLetterReason, letter.deadLetterSource];
  },
});
