"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, queue, tell } = require("./common");

const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
const mode = { receiveMode: "receiveAndDelete", skipConvertingDate: true };

/** Messages as they come back. */
async function sent(name, messages) {
  await queue(name);
  const sender = client.createSender(name);
  for (const each of messages) await sender.sendMessages(each);
  const receiver = client.createReceiver(name, mode);
  return await receiver.receiveMessages(messages.length);
}

/** A value with its type, which JSON does not tell. */
function typed(value) {
  if (Buffer.isBuffer(value)) return ["Buffer", value.toString("hex")];
  if (value instanceof Date) return ["Date", value.getTime()];
  if (typeof value === "number") return ["number", String(value)];
  return [value === null ? "null" : typeof value, value ?? null];
}

const properties = {
  text: "Grüße, 世界 🎉",
  empty: "",
  long: "x".repeat(1000),
  yes: true,
  no: false,
  zero: 0,
  small: -1,
  byte: 200,
  int: 2 ** 31 - 1,
  wide: 2 ** 40 + 1,
  most: Number.MAX_SAFE_INTEGER,
  least: Number.MIN_SAFE_INTEGER,
  fraction: 0.1,
  tiny: 1e-300,
  date: new Date(1_700_000_000_123),
  old: new Date(-86_400_000),
  nothing: null,
};

tell({
  async properties() {
    const [found] = await sent("properties", [{ body: 1, applicationProperties: properties }]);
    const differ = {};
    for (const [name, value] of Object.entries(properties)) {
      const [before, after] = [typed(value), typed(found.applicationProperties[name])];
      if (JSON.stringify(before) !== JSON.stringify(after)) differ[name] = [before, after];
    }
    return { differ, names: Object.keys(found.applicationProperties).length };
  },

  async batchProperties() {
    await queue("batch-properties");
    const sender = client.createSender("batch-properties");
    await sender.sendMessages([{ body: 1, applicationProperties: properties }, { body: 2 }]);
    const receiver = client.createReceiver("batch-properties", mode);
    const [found] = await receiver.receiveMessages(2);
    return Object.keys(properties).filter(
      (name) =>
        JSON.stringify(typed(properties[name])) !==
        JSON.stringify(typed(found.applicationProperties[name])),
    );
  },

  async fields() {
    const fields = {
      messageId: "m-1",
      correlationId: "c-1",
      subject: "subject",
      to: "to",
      replyTo: "reply",
      replyToSessionId: "reply session",
      contentType: "application/json",
      sessionId: "session",
      partitionKey: "session",
      timeToLive: 60_000,
    };
    const [found] = await sent("fields", [{ body: 1, ...fields }]);
    return Object.keys(fields).filter((name) => found[name] !== fields[name]);
  },

  async identifiers() {
    const uuid = Buffer.from("00112233445566778899aabbccddeeff", "hex");
    const ids = ["text", 42, 0, uuid];
    const found = await sent(
      "identifiers",
      ids.map((id) => ({ body: 1, messageId: id, correlationId: id })),
    );
    return found.map((each) => [typed(each.messageId), typed(each.correlationId)]);
  },

  async bodies() {
    const bodies = [
      "text", "", 0, 1.5, true, false, null, { deep: { list: [1, "a", null] } }, [1, 2],
      Buffer.from("bytes"), Buffer.alloc(0), Buffer.alloc(1000, 7),
    ];
    const found = await sent("bodies", bodies.map((body) => ({ body })));
    return found.map((each) => typed(each.body));
  },

  async annotated() {
    const messages = [
      { bodyType: "value", body: "text" },
      { bodyType: "value", body: { a: 1, b: [true, null] } },
      { bodyType: "value", body: 12.5 },
      { bodyType: "sequence", body: [[1, "two"], [3]] },
      { bodyType: "data", body: Buffer.from("raw") },
    ].map((each) => ({
      ...each,
      header: { durable: true, priority: 7, timeToLive: 60_000 },
      messageAnnotations: { "x-mine": "kept", "x-opt-sequence-number": 5 },
      applicationProperties: { n: 1 },
      properties: { messageId: "m", userId: "me", groupSequence: 3 },
    }));
    const found = await sent("annotated", messages);
    return found.map(({ _rawAmqpMessage: raw, body, sequenceNumber }) => ({
      kind: raw.bodyType,
      body: Buffer.isBuffer(body) ? body.toString() : body,
      header: [raw.header.durable, raw.header.priority, raw.header.timeToLive],
      annotation: raw.messageAnnotations["x-mine"],
      sequence: sequenceNumber.toString(),
      properties: raw.applicationProperties,
    }));
  },

  async large() {
    const body = Buffer.alloc(900_000);
    for (let at = 0; at < body.length; at++) body[at] = (at * 31) % 251;
    const found = await sent("large", [{ body }, { body }]);
    return found.map((each) => each.body.equals(body));
  },

  async sentAgain() {
    const [first] = await sent("first", [{ body: "x", applicationProperties: { n: 1 } }]);
    const [second] = await sent("second", [first]);
    return [second.body, second.applicationProperties, second.messageId === first.messageId];
  },
});
