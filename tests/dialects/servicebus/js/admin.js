"use strict";

const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");
const { connectionString, advance, now, refusal, tell } = require("./common");

const admin = new ServiceBusAdministrationClient(connectionString);
const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
const WHEN = new Date("2020-01-02T03:04:05.000Z");

async function all(listing) {
  const found = [];
  for await (const each of listing) found.push(each);
  return found;
}

async function send(name, ...messages) {
  const sender = client.createSender(name);
  await sender.sendMessages(messages);
  await sender.close();
}

/** Those properties that are in `given`. */
function picked(found, given) {
  return Object.fromEntries(Object.keys(given).map((name) => [name, found[name]]));
}

/** A topic with a subscription. */
async function topic(name, options = {}) {
  await admin.createTopic(name);
  await admin.createSubscription(name, "s", options);
  return name;
}

const QUEUE = {
  lockDuration: "PT13S",
  maxSizeInMegabytes: 3072,
  requiresDuplicateDetection: true,
  requiresSession: true,
  defaultMessageTimeToLive: "PT11M",
  deadLetteringOnMessageExpiration: true,
  duplicateDetectionHistoryTimeWindow: "PT12M",
  maxDeliveryCount: 14,
  enableBatchedOperations: false,
  status: "SendDisabled",
  userMetadata: "told by <me> & you",
  autoDeleteOnIdle: "PT10M",
  enablePartitioning: false,
  enableExpress: true,
};

tell({
  async namespace() {
    const found = await admin.getNamespaceProperties();
    return { ...found, createdAt: found.createdAt.getTime(), modifiedAt: found.modifiedAt.getTime() };
  },

  async queueDefaults() {
    return { ...(await admin.createQueue("defaults")) };
  },

  async queue() {
    const made = await admin.createQueue("txt/.-_123", QUEUE);
    const found = await admin.getQueue("txt/.-_123");
    const seen = picked(found, QUEUE);
    found.maxDeliveryCount = 5;
    found.userMetadata = undefined;
    const updated = await admin.updateQueue(found);
    const before = await admin.queueExists("txt/.-_123");
    await admin.deleteQueue("txt/.-_123");
    return {
      given: QUEUE,
      name: made.name,
      made: picked(made, QUEUE),
      found: seen,
      updated: [updated.maxDeliveryCount, updated.userMetadata ?? null, updated.lockDuration],
      exists: [before, await admin.queueExists("txt/.-_123")],
    };
  },

  async rights() {
    const authorizationRules = [
      {
        claimType: "SharedAccessKey",
        accessRights: ["Send"],
        keyName: "sends",
        primaryKey: "first",
        secondaryKey: "second",
      },
      {
        claimType: "SharedAccessKey",
        accessRights: ["Manage", "Send", "Listen"],
        keyName: "all",
        primaryKey: "one",
        secondaryKey: "two",
      },
    ];
    await admin.createQueue("rights", { authorizationRules });
    return { given: authorizationRules, found: (await admin.getQueue("rights")).authorizationRules };
  },

  async forwarding() {
    await admin.createQueue("end");
    await admin.createQueue("source", { forwardTo: "end", forwardDeadLetteredMessagesTo: "end" });
    await send("source", { body: "far" });
    const queue = await admin.getQueue("source");
    await topic("forwards", { forwardTo: "end" });
    await send("forwards", { body: "far" });
    const subscription = await admin.getSubscription("forwards", "s");
    return {
      targets: [queue.forwardTo, queue.forwardDeadLetteredMessagesTo, subscription.forwardTo],
      count: (await admin.getQueueRuntimeProperties("end")).activeMessageCount,
      missing: await refusal(admin.createQueue("nowhere", { forwardTo: "gone" })),
    };
  },

  async counts() {
    await admin.createQueue("counted");
    await send("counted", { body: 1 }, { body: 2 }, { body: 3 });
    const sender = client.createSender("counted");
    await sender.scheduleMessages([{ body: 4 }, { body: 5 }], new Date((await now()) + 3_600_000));
    const receiver = client.createReceiver("counted");
    const [first] = await receiver.receiveMessages(1);
    await receiver.deadLetterMessage(first);
    const found = await admin.getQueueRuntimeProperties("counted");
    const listed = await all(admin.listQueuesRuntimeProperties());
    await advance(3_600_000);
    const after = await admin.getQueueRuntimeProperties("counted");
    return {
      found: { ...found, createdAt: 0, modifiedAt: 0, accessedAt: 0 },
      times: [found.createdAt, found.modifiedAt, found.accessedAt].map((each) => each.getTime() > 0),
      listed: listed.find((each) => each.name === "counted").totalMessageCount,
      after: [after.activeMessageCount, after.scheduledMessageCount],
    };
  },

  async topicAndSubscription() {
    const given = { defaultMessageTimeToLive: "PT11M", userMetadata: "note", maxSizeInMegabytes: 2048 };
    const made = await admin.createTopic("deep/Topic", given);
    made.userMetadata = "other";
    const updated = await admin.updateTopic(made);
    const options = {
      lockDuration: "PT13S",
      requiresSession: true,
      defaultMessageTimeToLive: "PT10M",
      deadLetteringOnMessageExpiration: true,
      deadLetteringOnFilterEvaluationExceptions: false,
      maxDeliveryCount: 14,
      enableBatchedOperations: false,
      userMetadata: "note",
      autoDeleteOnIdle: "PT20M",
    };
    const subscription = await admin.createSubscription("deep/Topic", "Some.Name", options);
    subscription.maxDeliveryCount = 3;
    const changed = await admin.updateSubscription(subscription);
    const listed = await all(admin.listSubscriptions("deep/Topic"));
    const runtime = await admin.getTopicRuntimeProperties("deep/Topic");
    const exists = async () => [
      await admin.topicExists("deep/Topic"),
      await admin.subscriptionExists("deep/Topic", "Some.Name"),
    ];
    const before = await exists();
    await admin.deleteSubscription("deep/Topic", "Some.Name");
    const between = await exists();
    await admin.deleteTopic("deep/Topic");
    return {
      name: made.name,
      given: { ...given, userMetadata: "other" },
      topic: picked(updated, given),
      options: { ...options, maxDeliveryCount: 3 },
      subscription: picked(changed, options),
      names: listed.map((each) => [each.topicName, each.subscriptionName]),
      count: runtime.subscriptionCount,
      exists: [before, between, await exists()],
    };
  },

  async subscriptionCounts() {
    await topic("heard");
    await send("heard", { body: 1 }, { body: 2 });
    const receiver = client.createReceiver("heard", "s");
    const [first] = await receiver.receiveMessages(1);
    await receiver.deadLetterMessage(first);
    const found = await admin.getSubscriptionRuntimeProperties("heard", "s");
    const [listed] = await all(admin.listSubscriptionsRuntimeProperties("heard"));
    return [found, listed].map((each) => [
      each.totalMessageCount,
      each.activeMessageCount,
      each.deadLetterMessageCount,
      each.transferMessageCount,
      each.transferDeadLetterMessageCount,
    ]);
  },

  async rules() {
    await topic("ruled");
    const values = { text: "ü <&>", n: 5, ratio: 1.5, yes: true, no: false, when: WHEN };
    const parameters = Object.fromEntries(Object.entries(values).map(([k, v]) => [`@${k}`, v]));
    const [initial] = await all(admin.listRules("ruled", "s"));
    await admin.deleteRule("ruled", "s", "$Default");
    const sql = await admin.createRule(
      "ruled",
      "s",
      "sql",
      { sqlExpression: "n = @n", sqlParameters: parameters },
      { sqlExpression: "SET seen = @yes", sqlParameters: parameters },
    );
    const correlation = {
      correlationId: "c",
      subject: "l",
      to: "t",
      replyTo: "r",
      replyToSessionId: "rs",
      sessionId: "s",
      messageId: "m",
      contentType: "text/plain",
      applicationProperties: values,
    };
    const exact = await admin.createRule("ruled", "s", "exact", correlation);
    const one = await admin.createRule("ruled", "s", "one", { applicationProperties: { only: 1 } });
    await send(
      "ruled",
      { body: "sql", applicationProperties: { n: 5 } },
      { body: "one", applicationProperties: { only: 1 } },
      { body: "no", applicationProperties: { n: 6 } },
    );
    const receiver = client.createReceiver("ruled", "s", { receiveMode: "receiveAndDelete" });
    const received = [];
    while (received.length < 2) received.push(...(await receiver.receiveMessages(2)));
    received.push(...(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 })));
    sql.filter = { sqlExpression: "n = 7" };
    sql.action = {};
    const updated = await admin.updateRule("ruled", "s", sql);
    const exists = [await admin.ruleExists("ruled", "s", "sql")];
    await admin.deleteRule("ruled", "s", "sql");
    exists.push(await admin.ruleExists("ruled", "s", "sql"));
    return {
      initial: [initial.name, initial.filter.sqlExpression, initial.action.sqlExpression ?? null],
      parameters,
      sql: [sql.name, (await admin.getRule("ruled", "s", "exact")).name],
      exact: [correlation, exact.filter],
      one: one.filter.applicationProperties,
      received: received.map((each) => [each.body, each.applicationProperties]),
      updated: [updated.filter.sqlExpression, updated.action.sqlExpression ?? null],
      exists,
      names: (await all(admin.listRules("ruled", "s"))).map((each) => each.name),
    };
  },

  async sqlParameters() {
    await topic("parameters");
    const parameters = { "@text": "ü <&>", "@n": 5, "@ratio": 1.5, "@yes": true, "@when": WHEN };
    await admin.createRule(
      "parameters",
      "s",
      "r",
      { sqlExpression: "n = @n", sqlParameters: parameters },
      { sqlExpression: "SET seen = @yes", sqlParameters: { "@yes": true } },
    );
    const found = await admin.getRule("parameters", "s", "r");
    return {
      filter: [found.filter.sqlExpression, found.filter.sqlParameters],
      action: [found.action.sqlExpression, found.action.sqlParameters],
      given: parameters,
      isDate: found.filter.sqlParameters["@when"] instanceof Date,
    };
  },

  async defaultRule() {
    const filter = { subject: "mine" };
    await topic("defaulted", { defaultRuleOptions: { name: "first", filter } });
    const found = await all(admin.listRules("defaulted", "s"));
    return found.map((each) => [each.name, each.filter.subject]);
  },

  async paging() {
    const names = Array.from({ length: 103 }, (_, at) => `page/${at}`);
    for (const name of names) await admin.createQueue(name);
    const listed = (await all(admin.listQueues())).map((each) => each.name);
    const sizes = [];
    for await (const page of admin.listQueues().byPage({ maxPageSize: 40 })) sizes.push(page.length);
    await admin.createTopic("many");
    for (const at of names.keys()) await admin.createSubscription("many", `s${at}`);
    for (const at of names.keys()) {
      await admin.createRule("many", "s0", `r${at}`, { sqlExpression: `n = ${at}` });
    }
    return {
      missing: names.filter((each) => !listed.includes(each)),
      twice: listed.length - new Set(listed).size,
      full: sizes.slice(0, -1).every((each) => each === 40),
      all: sizes.reduce((a, b) => a + b) === listed.length,
      subscriptions: (await all(admin.listSubscriptions("many"))).length,
      rules: (await all(admin.listRules("many", "s0"))).length,
      topics: (await all(admin.listTopics())).some((each) => each.name === "many"),
    };
  },

  async errors() {
    await admin.createQueue("taken");
    await topic("taken-topic");
    const wrong = new ServiceBusAdministrationClient(
      connectionString.replace("SAS_KEY_VALUE", "WRONG_KEY"),
    );
    const sessions = { ...(await admin.getQueue("taken")), requiresSession: true };
    return {
      exists: await refusal(admin.createQueue("taken")),
      existsAsTopic: await refusal(admin.createTopic("taken")),
      existsSubscription: await refusal(admin.createSubscription("taken-topic", "s")),
      existsRule: await refusal(admin.createRule("taken-topic", "s", "$Default", { subject: "x" })),
      missing: await refusal(admin.getQueue("gone")),
      missingTopic: await refusal(admin.getTopicRuntimeProperties("gone")),
      missingSubscription: await refusal(admin.getSubscription("taken-topic", "gone")),
      missingRule: await refusal(admin.getRule("taken-topic", "s", "gone")),
      missingDelete: await refusal(admin.deleteQueue("gone")),
      missingUpdate: await refusal(admin.updateQueue({ ...sessions, name: "gone" })),
      badLock: await refusal(admin.createQueue("bad", { lockDuration: "PT6M" })),
      badText: await refusal(admin.createQueue("bad", { lockDuration: "soon" })),
      badRule: await refusal(admin.createRule("taken-topic", "s", "r", { sqlExpression: "= =" })),
      fixed: await refusal(admin.updateQueue(sessions)),
      unauthorized: await refusal(wrong.getQueue("taken")),
      unauthorizedCreate: await refusal(wrong.createQueue("never")),
      absent: await admin.queueExists("never"),
    };
  },
});
