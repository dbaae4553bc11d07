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
  for (let number = 0; !stopping; number++) {
    await sender.sendMessages({ body: number });
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
  .finally(() => process.exit(0));
