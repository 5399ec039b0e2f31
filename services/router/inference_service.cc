#include "services/router/inference_service.h"

#include <functional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "services/router/operations/detokenize.h"
#include "services/router/operations/generate.h"
#include "services/router/operations/generate_stream.h"
#include "services/router/operations/get_model_info.h"
#include "services/router/operations/list_models.h"
#include "services/router/operations/tokenize.h"
#include "services/router/operations/wire_message.h"
#include "services/router/session/worker_failure.h"

namespace baton::router {
namespace {

// Runs `work` on the prompt pool and finishes the call with its status.
grpc::ServerUnaryReactor* RunOnPool(RouterCore* core,
                                    grpc::CallbackServerContext* context,
                                    std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool taken = core->prompt_pool->TrySubmit([context, reactor, work = std::move(work)] {
    reactor->Finish(rpc::FinishStatus(context, work()));
  });
  if (!taken) {
    reactor->Finish(rpc::FinishStatus(
        context,
        rpc::ResourceExhausted(
            rpc::reason::kQueueFull, "too many prompts wait to be tokenized", kRetryDelay)));
  }
  return reactor;
}

template <typename Response>
grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context,
                                     absl::StatusOr<Response> result,
                                     Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (result.ok()) {
    *response = *std::move(result);
  }
  reactor->Finish(rpc::FinishStatus(context, result.status()));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return StartGenerate(core_, context, *request, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StartGenerateStream(core_, context, *request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return RunOnPool(core_, context, [this, request, response] {
    inference::v1::TokenizeRequest parsed;
    BATON_RETURN_IF_ERROR(ParseRequest(*request, &parsed));
    inference::v1::TokenizeResponse answer;
    BATON_RETURN_IF_ERROR(router::Tokenize(*core_->model, parsed, &answer));
    *response = SerializeResponse(answer);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(
    grpc::CallbackServerContext* context,
    const inference::v1::DetokenizeRequest* request,
    inference::v1::DetokenizeResponse* response) {
  return RunOnPool(core_, context, [this, request, response] {
    return router::Detokenize(*core_->model, *request, response);
  });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(
    grpc::CallbackServerContext* context,
    const inference::v1::ListModelsRequest* /*request*/,
    inference::v1::ListModelsResponse* response) {
  return FinishWith(context, router::ListModels(*core_), response);
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(
    grpc::CallbackServerContext* context,
    const inference::v1::GetModelInfoRequest* request,
    inference::v1::ModelInfo* response) {
  return FinishWith(context, router::GetModelInfo(*core_, request->model()), response);
}

}  // namespace baton::router
