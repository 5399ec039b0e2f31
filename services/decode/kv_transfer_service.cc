#include "services/decode/kv_transfer_service.h"

#include "services/decode/operations/handshake.h"
#include "services/decode/operations/link.h"
#include "services/decode/operations/push_kv.h"
#include "services/decode/operations/transfer.h"

namespace baton::decode {

grpc::ServerUnaryReactor* KvTransferService::Handshake(grpc::CallbackServerContext* context,
                                                       const worker::v1::HandshakeRequest* request,
                                                       worker::v1::HandshakeResponse* response) {
  return operations::Handshake(landing_, context, *request, response);
}

grpc::ServerBidiReactor<worker::v1::TransferRequest, worker::v1::TransferResponse>*
KvTransferService::Transfer(grpc::CallbackServerContext* context) {
  return operations::Transfer(worker_, landing_, context);
}

grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>* KvTransferService::PushKv(
    grpc::CallbackServerContext* context) {
  return operations::PushKv(worker_, transports_.grpc(), context);
}

grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>* KvTransferService::Link(
    grpc::CallbackServerContext* context) {
  return operations::Link(worker_, transports_.nccl(), context);
}

}  // namespace baton::decode
