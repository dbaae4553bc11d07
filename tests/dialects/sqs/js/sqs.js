// AWS's SDK for JavaScript, which checks the digests of bodies. Tells what each scenario has found.
const {
  SQSClient, CreateQueueCommand, SendMessageCommand, SendMessageBatchCommand, ReceiveMessageCommand,
  DeleteMessageCommand, ChangeMessageVisibilityCommand, GetQueueUrlCommand,
} = require("@aws-sdk/client-sqs");

// The endpoint comes from the environment: then each request goes to the origin of its queue's URL.
const sqs = new SQSClient({});

const scenarios = {
  async roundTrip() {
    const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "js" }));
    const sent = await sqs.send(new SendMessageCommand({
      QueueUrl, MessageBody: "grüße <&\"\r\n>",
      MessageAttributes: {
        colour: { DataType: "String", StringValue: "blue" },
        blob: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
      },
    }));
    const { Messages: [found] } = await sqs.send(new ReceiveMessageCommand({
      QueueUrl, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"], WaitTimeSeconds: 5,
    }));
    const ReceiptHandle = found.ReceiptHandle;
    await sqs.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout: 60 }));
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
    const empty = await sqs.send(new ReceiveMessageCommand({ QueueUrl }));
    return {
      url: QueueUrl, body: found.Body, sameId: found.MessageId === sent.MessageId,
      colour: found.MessageAttributes.colour.StringValue,
      blob: Array.from(found.MessageAttributes.blob.BinaryValue),
      count: found.Attributes.ApproximateReceiveCount,
      sameDigest: found.MD5OfMessageAttributes === sent.MD5OfMessageAttributes,
      rest: (empty.Messages || []).length,
    };
  },
  async batch() {
    const { QueueUrl } = await sqs.send(new CreateQueueCommand({
      QueueName: "js.fifo", Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" },
    }));
    const Entries = ["a", "b", "c"].map((Id) => ({ Id, MessageBody: Id, MessageGroupId: Id }));
    const told = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
    const { Messages } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10 }));
    return { sent: told.Successful.length, received: Messages.map((each) => each.Body) };
  },
  async missing() {
    try {
      await sqs.send(new GetQueueUrlCommand({ QueueName: "nothing" }));
    } catch (error) {
      return { name: error.name, status: error.$metadata.httpStatusCode, code: error.Code };
    }
  },
};

(async () => {
  const told = {};
  for (const [name, run] of Object.entries(scenarios)) {
    try {
      told[name] = await run();
    } catch (error) {
      told[name] = { error: String(error), stack: String(error.stack) };
    }
  }
  console.log(JSON.stringify(told));
})();
