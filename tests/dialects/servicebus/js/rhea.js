// Raw AMQP with rhea, which knows nothing of Service Bus.
"use strict";

const crypto = require("node:crypto");
const rhea = require("rhea");
const { endpoint, queue, counts, tell } = require("./common");

const [host, port] = endpoint.split(":");
const NAME = "RootManageSharedAccessKey";
const KEY = "SAS_KEY_VALUE";
const PLAIN = { username: NAME, password: KEY };
const ANONYMOUS = { username: NAME };

/** The next event of a name. */
function once(emitter, name) {
  return new Promise((done) => emitter.once(name, done));
}

/** The first event of several: its name and what came with it. */
function first(emitter, ...names) {
  return new Promise((done) => {
    for (const name of names) emitter.once(name, (context) => done([name, context]));
  });
}

async function connected(options = PLAIN) {
  const container = rhea.create_container();
  container.on("error", () => {});
  const connection = container.connect({ host, port, reconnect: false, ...options });
  await once(connection, "connection_open");
  return connection;
}

async function closed(connection) {
  connection.close();
  await once(connection, "connection_close");
}

async function opened(link) {
  link.setMaxListeners(0);
  await once(link, link.is_sender() ? "sendable" : "receiver_open");
  return link;
}

/** Sends, and what was said of each message. */
async function sent(sender, ...messages) {
  const outcomes = messages.map(
    (each) =>
      new Promise((done) => {
        const delivery = sender.send(each);
        for (const name of ["accepted", "rejected", "released", "modified"]) {
          sender.on(name, (context) => context.delivery === delivery && done(name));
        }
      }),
  );
  return await Promise.all(outcomes);
}

/** So many messages of a receiver. */
function received(receiver, count) {
  const found = [];
  return new Promise((done) => {
    receiver.on("message", (context) => {
      found.push(context);
      if (found.length === count) done(found);
    });
  });
}

const bodies = (found) => found.map((each) => each.message.body);

function pattern(size) {
  const bytes = Buffer.alloc(size);
  for (let at = 0; at < size; at++) bytes[at] = (at * 31) % 251;
  return bytes;
}

/** How large the frames in a stream of bytes are. */
function frameSizes(bytes) {
  const sizes = [];
  for (let at = 0; at + 4 <= bytes.length; at += sizes.at(-1)) sizes.push(bytes.readUInt32BE(at));
  return sizes;
}

/** A SAS token. */
function token(resource, { key = KEY, name = NAME, seconds = 3600 } = {}) {
  const sr = encodeURIComponent(resource);
  const se = Math.floor(Date.now() / 1000) + seconds;
  const signature = crypto.createHmac("sha256", key).update(`${sr}\n${se}`).digest("base64");
  const sig = encodeURIComponent(signature);
  return `SharedAccessSignature sr=${sr}&sig=${sig}&se=${se}&skn=${name}`;
}

/** Asks a node, and what it answers. */
async function asked(connection, node, message) {
  const receiver = connection.open_receiver({ source: node, target: "answers" });
  const sender = connection.open_sender(node);
  await Promise.all([opened(receiver), opened(sender)]);
  const answer = once(receiver, "message");
  sender.send({ message_id: "1", reply_to: "answers", ...message });
  const found = (await answer).message;
  sender.close();
  receiver.close();
  return found;
}

async function put(connection, resource, text) {
  const answer = await asked(connection, "$cbs", {
    application_properties: {
      operation: "put-token",
      type: "servicebus.windows.net:sastoken",
      name: resource,
    },
    body: text,
  });
  return [answer.correlation_id, answer.application_properties["status-code"]];
}

/** How an attach of a sender ends. */
async function attached(connection, address) {
  const sender = connection.open_sender(address);
  const [event] = await first(sender, "sendable", "sender_error");
  return event === "sendable" ? "open" : sender.error.condition;
}

tell({
  async plain() {
    await queue("plain");
    const connection = await connected();
    const sender = await opened(connection.open_sender("plain"));
    const outcomes = await sent(sender, { body: "hello", message_id: "m" });
    const receiver = connection.open_receiver("plain");
    const [{ message }] = await received(receiver, 1);
    await closed(connection);
    return [outcomes, message.message_id, message.body];
  },

  async wrongPassword() {
    const container = rhea.create_container();
    container.on("error", () => {});
    const options = { host, port, reconnect: false, username: NAME, password: "no" };
    const connection = container.connect(options);
    const [event, { error }] = await first(connection, "connection_open", "connection_error");
    return [event, error?.condition ?? null];
  },

  async anonymous() {
    for (const name of ["q1", "q10", "q1-b"]) await queue(name);
    const results = {};
    for (const [kind, options] of Object.entries({ anonymous: ANONYMOUS, without: {} })) {
      const connection = await connected(options);
      const before = await attached(connection, "q1");
      const answer = await put(connection, `sb://${host}/q1`, token(`sb://${host}/q1`));
      results[kind] = [before, answer, await attached(connection, "q1")];
      results[kind].push(await attached(connection, "q10"), await attached(connection, "q1-b"));
      await closed(connection);
    }
    return results;
  },

  async tokens() {
    const connection = await connected(ANONYMOUS);
    const resource = `sb://${host}/q1`;
    const asks = {
      wrongKey: token(resource, { key: "no" }),
      wrongName: token(resource, { name: "nobody" }),
      expired: token(resource, { seconds: -10 }),
      elsewhere: token(`sb://${host}/q10`),
      garbage: "SharedAccessSignature nothing",
      changed: token(resource).replace("q1", "q10"),
    };
    const told = {};
    for (const [name, text] of Object.entries(asks)) {
      told[name] = (await put(connection, resource, text))[1];
    }
    told.attached = await attached(connection, "q1");
    await closed(connection);
    return told;
  },

  async smallFrames() {
    await queue("small-frames");
    const connection = await connected({ ...PLAIN, max_frame_size: 512 });
    const body = pattern(900_000); // fewer frames than rhea has a window for
    const sender = await opened(connection.open_sender("small-frames"));
    sender.session.outgoing.compute_max_payload = () => 450;
    const outcomes = await sent(sender, { body }, { body: "between" }, { body });
    const bytes = [];
    connection.socket.on("data", (data) => bytes.push(data));
    const receiver = connection.open_receiver("small-frames");
    const found = bodies(await received(receiver, 3));
    const same = found.map((each) => (Buffer.isBuffer(each) ? each.equals(body) : each));
    await closed(connection);
    const sizes = frameSizes(Buffer.concat(bytes));
    return { outcomes, same, frames: sizes.length, widest: Math.max(...sizes) };
  },

  async interleaved() {
    await queue("interleaved");
    const connection = await connected();
    const links = [connection.open_sender("interleaved"), connection.open_sender("interleaved")];
    await Promise.all(links.map(opened));
    const session = links[0].session;
    session.outgoing.compute_max_payload = () => 1_000;
    // What one delivery has to say is kept back, so that the other's frames come between.
    const output = session.output;
    const frames = [];
    session.output = (frame, payload) => frames.push([frame, payload]);
    const parts = [pattern(20_000), pattern(30_000)];
    const outcomes = links.map((sender, at) => sent(sender, { body: parts[at] }));
    await new Promise((done) => setImmediate(done));
    session.output = output;
    const id = frames[0][0].delivery_id;
    const lines = [id, id + 1].map((one) => frames.filter(([each]) => each.delivery_id === one));
    const lengths = lines.map((line) => line.length);
    while (lines[0].length || lines[1].length) {
      for (const line of lines) if (line.length) session.output(...line.shift());
    }
    connection._register();
    const told = await Promise.all(outcomes);
    const receiver = connection.open_receiver("interleaved");
    const found = bodies(await received(receiver, 2));
    await closed(connection);
    const same = parts.map((part) => found.some((each) => each.equals(part)));
    return { lengths, told, same };
  },

  async aborted() {
    await queue("aborted");
    const connection = await connected();
    const sender = await opened(connection.open_sender("aborted"));
    const session = sender.session;
    session.outgoing.compute_max_payload = () => 1_000;
    const output = session.output;
    session.output = (frame, payload) => {
      if (frame.more === false) {
        frame.aborted = true;
        payload = undefined;
      }
      return output.call(session, frame, payload);
    };
    const answers = [];
    for (const name of ["accepted", "rejected", "released"]) {
      sender.on(name, () => answers.push(name));
    }
    sender.send({ body: pattern(10_000) });
    await new Promise((done) => setImmediate(done));
    session.output = output;
    await sent(sender, { body: "after" });
    const { active } = await counts("aborted");
    await closed(connection);
    return { answers, active };
  },

  async presettled() {
    await queue("presettled");
    const connection = await connected();
    const options = { target: "presettled", snd_settle_mode: 1 };
    const sender = await opened(connection.open_sender(options));
    let answers = 0;
    for (const name of ["accepted", "rejected", "settled"]) sender.on(name, () => answers++);
    for (let body = 0; body < 50; body++) sender.send({ body });
    const receiver = connection.open_receiver({ source: "presettled", snd_settle_mode: 1 });
    const found = await received(receiver, 50);
    const settled = found.every((each) => each.delivery.remote_settled);
    await closed(connection);
    return { found: bodies(found), settled, answers, counts: await counts("presettled") };
  },

  async manySessions() {
    const connection = await connected();
    const told = await Promise.all(
      [0, 1, 2, 3].map(async (number) => {
        const session = connection.create_session();
        session.begin();
        const each = [];
        for (let at = 0; at < 5; at++) {
          const name = await queue(`many-${number}-${at}`);
          const receiver = session.open_receiver(name);
          const sender = await opened(session.open_sender(name));
          const coming = received(receiver, 3);
          await sent(sender, { body: `${name} 1` }, { body: `${name} 2` }, { body: `${name} 3` });
          each.push(bodies(await coming).join());
        }
        session.close();
        await once(session, "session_close");
        return each;
      }),
    );
    const again = connection.create_session();
    again.begin();
    const sender = await opened(again.open_sender("many-0-0"));
    const outcomes = await sent(sender, { body: "again" });
    await closed(connection);
    return { told: told.flat(), outcomes };
  },

  async window() {
    await queue("window");
    const connection = await connected();
    const sender = await opened(connection.open_sender("window"));
    await sent(sender, ...Array.from({ length: 100 }, (_, body) => ({ body })));
    const receiver = connection.open_receiver({ source: "window", credit_window: 7 });
    const found = bodies(await received(receiver, 100));
    receiver.close();
    await once(receiver, "receiver_close");
    await closed(connection);
    return { found, counts: await counts("window") };
  },

  async credit() {
    await queue("credit");
    const connection = await connected();
    const sender = await opened(connection.open_sender("credit"));
    await sent(sender, ...Array.from({ length: 10 }, (_, body) => ({ body })));
    const receiver = await opened(
      connection.open_receiver({ source: "credit", credit_window: 0, autoaccept: false }),
    );
    const told = [];
    for (const credit of [3, 2]) {
      const coming = received(receiver, credit);
      receiver.add_credit(credit);
      const found = bodies(await coming);
      receiver.removeAllListeners("message");
      const { active, locked } = await counts("credit");
      told.push([found, active, locked]);
    }
    await closed(connection);
    return told;
  },

  async drain() {
    await queue("drain");
    const connection = await connected();
    const sender = await opened(connection.open_sender("drain"));
    await sent(sender, { body: 1 }, { body: 2 });
    const receiver = await opened(
      connection.open_receiver({ source: "drain", credit_window: 0, autoaccept: false }),
    );
    const found = [];
    receiver.on("message", (context) => found.push(context.message.body));
    receiver.add_credit(10);
    receiver.drain_credit();
    await once(receiver, "receiver_drained");
    const drained = [[...found], receiver.credit];
    receiver.drain = false;
    await sent(sender, { body: 3 });
    const { active } = await counts("drain");
    receiver.add_credit(1);
    await once(receiver, "message");
    await closed(connection);
    return { drained, active, then: found };
  },

  async largeCredit() {
    await queue("large-credit");
    const connection = await connected();
    const sender = await opened(connection.open_sender("large-credit"));
    const told = [];
    for (const credit of [2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1]) {
      const source = { source: "large-credit", credit_window: 0 };
      const receiver = await opened(connection.open_receiver(source));
      const coming = received(receiver, 1);
      receiver.add_credit(credit);
      await sent(sender, { body: credit });
      told.push(...bodies(await coming));
      receiver.close();
      await once(receiver, "receiver_close");
    }
    await closed(connection);
    return told;
  },

  async largeWindow() {
    await queue("large-window");
    const connection = await connected();
    const sender = await opened(connection.open_sender("large-window"));
    const { session } = sender;
    const output = session.output;
    const told = [];
    for (const size of [2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1]) {
      session.output = (frame, payload) => {
        if (frame.incoming_window !== undefined) frame.incoming_window = size;
        return output.call(session, frame, payload);
      };
      const receiver = connection.open_receiver("large-window");
      const coming = received(receiver, 1);
      await sent(sender, { body: size });
      told.push(...bodies(await coming));
      receiver.close();
      await once(receiver, "receiver_close");
    }
    await closed(connection);
    return told;
  },

  async outcomes() {
    await queue("outcomes");
    const connection = await connected();
    const sender = await opened(connection.open_sender("outcomes"));
    const receiver = await opened(
      connection.open_receiver({
        source: "outcomes",
        credit_window: 0,
        autoaccept: false,
        autosettle: false,
        rcv_settle_mode: 1,
      }),
    );
    const states = {
      accepted: rhea.message.accepted().described(),
      released: rhea.message.released().described(),
      modified: rhea.message.modified({ delivery_failed: true }).described(),
      deferred: rhea.message.modified({ undeliverable_here: true }).described(),
      rejected: rhea.message.rejected({ error: { condition: "x:bad" } }).described(),
    };
    const told = {};
    for (const [name, state] of Object.entries(states)) {
      await sent(sender, { body: name });
      receiver.add_credit(1);
      const { delivery } = await once(receiver, "message");
      delivery.update(false, state);
      await once(receiver, "settled");
      const { active, deferred, dead } = await counts("outcomes");
      const answer = delivery.remote_state?.constructor.composite_type ?? null;
      told[name] = [answer, active, deferred, dead];
      if (active) {
        receiver.add_credit(1);
        const again = await once(receiver, "message");
        told[name].push(again.message.delivery_count ?? 0);
        again.delivery.update(true, states.accepted);
        await counts("outcomes");
      }
    }
    await closed(connection);
    return told;
  },

  async batch() {
    await queue("batch-format");
    const connection = await connected();
    const sender = await opened(connection.open_sender("batch-format"));
    const parts = [1, 2, 3].map((body) => rhea.message.encode({ body, subject: `s${body}` }));
    const sections = rhea.message.data_sections(parts);
    const outcome = first(sender, "accepted", "rejected");
    sender.send(rhea.message.encode({ body: sections }), undefined, 0x80013700);
    const [event] = await outcome;
    const receiver = connection.open_receiver("batch-format");
    const found = await received(receiver, 3);
    await closed(connection);
    return [event, found.map((each) => [each.message.body, each.message.subject])];
  },

  async unreadable() {
    await queue("unreadable");
    const connection = await connected();
    const sender = await opened(connection.open_sender("unreadable"));
    const told = {};
    for (const hex of ["", "ff00ff", "0053", "005375a0ff", "0053770045", "005378c10100"]) {
      const outcome = first(sender, "accepted", "rejected");
      sender.send(Buffer.from(hex, "hex"), undefined, 0);
      const [event, { delivery }] = await outcome;
      told[hex] = [event, delivery.remote_state.error?.condition ?? null];
    }
    const outcome = first(sender, "accepted", "rejected");
    sender.send(Buffer.from("005375a000", "hex"), undefined, 0x80013700); // a batch of nothing
    told.batch = (await outcome)[0];
    const outcomes = await sent(sender, { body: "goes on" });
    await closed(connection);
    return { told, outcomes };
  },

  async sessionIds() {
    await queue("session-ids", { requires_session: true });
    const connection = await connected();
    const { wrap_int, wrap_list, wrap_string, wrap_symbol, wrap_described } = rhea.types;
    const ids = {
      text: wrap_string("text"),
      empty: wrap_string(""),
      described: wrap_described("described", "com.microsoft:session-filter"),
      symbol: wrap_symbol("symbol"),
      number: wrap_int(1),
      list: wrap_list([]),
      long: wrap_string("x".repeat(129)),
    };
    const told = {};
    for (const [name, id] of Object.entries(ids)) {
      const filter = { "com.microsoft:session-filter": id };
      const receiver = connection.open_receiver({
        source: { address: "session-ids", filter },
        credit_window: 0,
      });
      await once(receiver, "receiver_open");
      await counts("session-ids"); // a detach would be here by now
      const given = receiver.source?.filter?.["com.microsoft:session-filter"];
      told[name] = receiver.error?.condition ?? `open: ${given}`;
    }
    await closed(connection);
    return told;
  },

  async deleting() {
    await queue("deleting-many");
    const connection = await connected();
    const sender = await opened(connection.open_sender("deleting-many"));
    await sent(sender, ...Array.from({ length: 30 }, (_, body) => ({ body })));
    const told = [];
    for (const count of [10, 4000, 4000]) {
      const answer = await asked(connection, "deleting-many/$management", {
        application_properties: { operation: "com.microsoft:batch-delete-messages" },
        body: {
          "message-count": rhea.types.wrap_int(count),
          "enqueued-time-utc": rhea.types.wrap_timestamp(Date.now() + 366 * 86_400_000),
        },
      });
      const { statusCode } = answer.application_properties;
      told.push([statusCode, answer.body["message-count"] ?? null]);
    }
    await closed(connection);
    return told;
  },

  async largeRequest() {
    await queue("large-request", { max_message_bytes: 4_000_000 });
    const connection = await connected();
    const message = rhea.message.encode({
      message_id: "m",
      message_annotations: { "x-opt-scheduled-enqueue-time": rhea.types.wrap_timestamp(4e12) },
      body: Buffer.alloc(3_000_000),
    });
    const answer = await asked(connection, "large-request/$management", {
      application_properties: { operation: "com.microsoft:schedule-message" },
      body: { messages: rhea.types.wrap_list([{ "message-id": "m", message }]) },
    });
    await closed(connection);
    return answer.application_properties.statusCode;
  },

  async unknownOperation() {
    const connection = await connected();
    const answer = await asked(connection, "deleting-many/$management", {
      application_properties: { operation: "com.microsoft:fly" },
      body: {},
    });
    await closed(connection);
    const { statusCode, errorCondition } = answer.application_properties;
    return [statusCode, errorCondition];
  },

  async refusals() {
    const connection = await connected();
    const receiver = connection.open_receiver("nowhere");
    await once(receiver, "receiver_error");
    const told = {
      sender: await attached(connection, "nowhere"),
      receiver: receiver.error.condition,
      dead: await attached(connection, "plain/$DeadLetterQueue"),
      still: await attached(connection, "plain"),
    };
    await closed(connection);
    return told;
  },

  async reattached() {
    await queue("reattached");
    const connection = await connected();
    const told = [];
    for (let at = 0; at < 5; at++) {
      const sender = connection.open_sender({ name: "same", target: "reattached" });
      await opened(sender);
      told.push(...(await sent(sender, { body: at })));
      sender.close();
      await once(sender, "sender_close");
    }
    await closed(connection);
    return { told, active: (await counts("reattached")).active };
  },
});
