#include "services/decode/operations/push_kv.h"

namespace baton::decode::operations {

grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>* PushKv(
    worker::Worker& worker,
    transport::GrpcTransport& transport,
    grpc::CallbackServerContext* context) {
  worker.metrics().RecordTransport(transport.name());
  return transport.NewPushKvReactor(context);
}

}  // namespace baton::decode::operations
