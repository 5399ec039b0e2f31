#include "services/router/operations/list_models.h"

#include <utility>

#include "common/base/status_macros.h"
#include "services/router/operations/get_model_info.h"

namespace baton::router {

absl::StatusOr<inference::v1::ListModelsResponse> ListModels(const RouterCore& core) {
  BATON_ASSIGN_OR_RETURN(inference::v1::ModelInfo info, GetModelInfo(core, /*name=*/""));
  inference::v1::ListModelsResponse response;
  *response.add_models() = std::move(info);
  return response;
}

}  // namespace baton::router
