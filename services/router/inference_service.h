// The gRPC service of the router: every rpc is one operation.
#pragma once

#include "proto/baton/inference/v1/inference.grpc.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// Thread-safe. Reactions only start work.
class InferenceService final : public inference::v1::Inference::CallbackService {
 public:
  // `core` must outlive the service and its calls.
  explicit InferenceService(RouterCore* core) : core_(core) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const inference::v1::GenerateRequest* request,
                                     inference::v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<inference::v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* context, const inference::v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const inference::v1::TokenizeRequest* request,
                                     inference::v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const inference::v1::DetokenizeRequest* request,
                                       inference::v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const inference::v1::ListModelsRequest* request,
                                       inference::v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const inference::v1::GetModelInfoRequest* request,
                                         inference::v1::ModelInfo* response) override;

 private:
  RouterCore* const core_;
};

}  // namespace baton::router
