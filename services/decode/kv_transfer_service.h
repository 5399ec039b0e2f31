// baton.worker.v1.KvTransfer: thin adapter, one file per operation in operations/.
#pragma once

#include "common/handoff/land/landing.h"
#include "common/worker/transports.h"
#include "common/worker/worker.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::decode {

// Thread-safe. All arguments are borrowed.
class KvTransferService : public worker::v1::KvTransfer::CallbackService {
 public:
  KvTransferService(worker::Worker* worker,
                    handoff::Landing* landing,
                    worker::Transports* transports)
      : worker_(*worker), landing_(*landing), transports_(*transports) {}

  grpc::ServerUnaryReactor* Handshake(grpc::CallbackServerContext* context,
                                      const worker::v1::HandshakeRequest* request,
                                      worker::v1::HandshakeResponse* response) override;
  grpc::ServerBidiReactor<worker::v1::TransferRequest, worker::v1::TransferResponse>* Transfer(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<worker::v1::KvChunk, worker::v1::KvChunkAck>* PushKv(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<worker::v1::LinkMessage, worker::v1::LinkMessage>* Link(
      grpc::CallbackServerContext* context) override;

 private:
  worker::Worker& worker_;
  handoff::Landing& landing_;
  worker::Transports& transports_;
};

}  // namespace baton::decode
