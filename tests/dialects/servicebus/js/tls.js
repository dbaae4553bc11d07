"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, refusal, tell } = require("./common");

tell({
  async secure() {
    const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
    const told = await refusal(
      (async () => {
        await client.createSender("secure").sendMessages({ body: "by TLS" });
        const receiver = client.createReceiver("secure");
        const [message] = await receiver.receiveMessages(1);
        await receiver.completeMessage(message);
        return message.body;
      })(),
    );
    await client.close();
    return told;
  },
});
