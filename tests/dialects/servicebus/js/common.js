// What the scripts share. Each is given a connection string and prints one JSON object: what every
// scenario of its table returned, or the error with which it ended.
"use strict";

const HANGS_MS = 20_000; // who has not ended by then never will
const connectionString = process.argv[2];
const endpoint = /Endpoint=sb:\/\/([^;/]+)/i.exec(connectionString)[1];

async function call(method, path, body) {
  const response = await fetch(`http://${endpoint}/api/v1/namespaces/default/${path}`, {
    method,
    headers: { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

/** Makes a queue. */
async function queue(name, properties = {}) {
  await call("PUT", `queues/${name}`, properties);
  return name;
}

/** How many messages of a queue are in which state. */
async function counts(name) {
  return (await call("GET", `queues/${name}`)).counts;
}

/** What time it is for the broker. */
async function now() {
  return (await call("GET", "clock")).now_ms;
}

/** Moves the broker's clock on. */
async function advance(ms) {
  await call("POST", "clock", { advance_ms: ms });
}

function described(error) {
  return { name: error.name, code: error.code, message: error.message };
}

/** The error with which something ends. */
async function refusal(promise) {
  try {
    return { returned: await promise };
  } catch (error) {
    return described(error);
  }
}

/** What never ends is told as an error, so that the other scenarios are still told of. */
async function ended(scenario) {
  let timer;
  const never = new Promise((_, failed) => {
    timer = setTimeout(() => failed(new Error("it does not end")), HANGS_MS);
  });
  try {
    return await Promise.race([scenario(), never]);
  } finally {
    clearTimeout(timer);
  }
}

async function tell(scenarios) {
  const told = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    try {
      told[name] = (await ended(scenario)) ?? null;
    } catch (error) {
      told[name] = { error: described(error), stack: error.stack };
    }
  }
  await new Promise((done) => process.stdout.write(JSON.stringify(told), done));
  process.exit(0);
}

module.exports = { connectionString, endpoint, call, queue, counts, now, advance, refusal, tell };
