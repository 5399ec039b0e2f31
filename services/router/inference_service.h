// The gRPC service of the router: every rpc is one operation.
#pragma once

#include "proto/baton/inference/v1/inference.grpc.pb.h"
#include "services/router/router_core.h"

namespace baton::router {

// Methods whose requests carry text are raw, so that a string which is not UTF-8 can be answered
// with its name.
using InferenceMethods = inference::v1::Inference::WithRawCallbackMethod_Generate<
    inference::v1::Inference::WithRawCallbackMethod_GenerateStream<
        inference::v1::Inference::WithRawCallbackMethod_Tokenize<
            inference::v1::Inference::WithCallbackMethod_Detokenize<
                inference::v1::Inference::WithCallbackMethod_ListModels<
                    inference::v1::Inference::WithCallbackMethod_GetModelInfo<
                        inference::v1::Inference::Service>>>>>>;

// Thread-safe. Reactions only start work.
class InferenceService final : public InferenceMethods {
 public:
  // `core` must outlive the service and its calls.
  explicit InferenceService(RouterCore* core) : core_(core) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
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
