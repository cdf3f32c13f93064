export { type Delivery, DeliveryError } from "./delivery.js";
export { type NodeReceiver, type NodeRequest, type NodeResponse, createNodeReceiver, toNode } from "./node.js";
export { type Handled, type Receiver, type ReceiverOptions, createReceiver } from "./receiver.js";
export { SignatureError, type SignatureFault, Verifier, type VerifierOptions } from "./signature.js";
export { type Begun, type Given, MemoryStore, type MemoryStoreOptions, type SeenStore } from "./store.js";
