// Says of each delivery on standard input, one JSON object a line, whether its signature is right.
const fs = require("fs");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

for (const line of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const { secret, body, headers } = JSON.parse(line);
  try {
    new Webhook(secret).verify(body, headers, { jsonParse: false });
    console.log("right");
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    console.log("wrong");
  }
}
