// baton.worker.v1.Control: thin adapter, one file per operation in operations/.
#pragma once

#include "proto/baton/worker/v1/control.grpc.pb.h"

namespace baton::worker {

class Worker;

// Thread-safe. `worker` is borrowed.
class ControlService : public v1::Control::CallbackService {
 public:
  explicit ControlService(Worker* worker) : worker_(*worker) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const v1::GetLoadsRequest* request,
                                     v1::Loads* response) override;
  grpc::ServerWriteReactor<v1::Loads>* WatchLoads(grpc::CallbackServerContext* context,
                                                  const v1::WatchLoadsRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::SetLogLevelResponse* response) override;

 private:
  Worker& worker_;
};

}  // namespace baton::worker
