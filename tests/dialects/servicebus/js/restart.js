// Sends and receives until its input ends, says so of each message that was acknowledged, and at the
// end what has come.
"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString } = require("./common");

const client = new ServiceBusClient(connectionString, {
  retryOptions: { maxRetries: 100, retryDelayInMs: 100, timeoutInMs: 2_000 },
});
const acknowledged = new Set();
const received = new Map();
let stopping = false;

process.stdin.resume();
process.stdin.on("end", () => (stopping = true));

function say(word) {
  return new Promise((done) => process.stdout.write(`${JSON.stringify(word)}\n`, done));
}

async function send() {
  const sender = client.createSender("restarted");
  let failures = 0;
  for (let number = 0; !stopping; number++) {
    try {
      await sender.sendMessages({ body: number });
    } catch (error) {
      // Some breaks of a connection the client does not try again by itself. What was not
      // acknowledged may be missing; once the broker is back the next is to go through.
      if (++failures > 200) throw error;
      await new Promise((done) => setTimeout(done, 100));
      continue;
    }
    acknowledged.add(number);
    await say(number);
  }
}

function receive() {
  const receiver = client.createReceiver("restarted");
  return new Promise((done) => {
    receiver.subscribe({
      async processMessage(message) {
        received.set(message.body, (received.get(message.body) ?? 0) + 1);
      },
      async processError() {},
    });
    const timer = setInterval(() => {
      const missing = [...acknowledged].some((number) => !received.has(number));
      if (stopping && !missing) {
        clearInterval(timer);
        done();
      }
    }, 50);
  });
}

Promise.all([send(), receive()])
  .then(() => say({ acknowledged: [...acknowledged], received: [...received.keys()] }))
  .then(() => process.exit(0));
