#include "services/router/model/served_model.h"

#include <filesystem>
#include <utility>

#include "spdlog/spdlog.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/read_file.h"

namespace baton::router {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

std::string DirectoryName(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ServedModel>> LoadServedModel(const std::string& directory,
                                                                   const std::string& name) {
  auto model = std::make_unique<ServedModel>();
  model->name = name.empty() ? DirectoryName(directory) : name;
  BATON_ASSIGN_OR_RETURN(const std::string config,
                         checkpoint::ReadFile(directory + "/config.json", kMaxConfigBytes));
  absl::StatusOr<std::string> generation =
      checkpoint::ReadFile(directory + "/generation_config.json", kMaxConfigBytes);
  if (!generation.ok() && !absl::IsNotFound(generation.status())) {
    return generation.status();
  }
  const std::string generation_config = generation.ok() ? *std::move(generation) : "";
  absl::StatusOr<checkpoint::ModelConfig> parsed =
      checkpoint::ParseModelConfig(config, generation_config);
  if (!parsed.ok()) {
    return WithContext(parsed.status(), directory + "/config.json");
  }
  model->config = *std::move(parsed);
  for (const std::string& warning : model->config.warnings) {
    spdlog::warn("{}: {}", directory, warning);
  }
  if (auto sampling = ParseSamplingDefaults(generation_config); sampling.ok()) {
    model->sampling = *sampling;
  } else {  // published files have had broken ones; a request can name every value itself
    spdlog::warn(
        "{}/generation_config.json is ignored: {}", directory, sampling.status().ToString());
  }
  BATON_ASSIGN_OR_RETURN(model->tokenizer, text::LoadTokenizer(directory));
  return std::unique_ptr<const ServedModel>(std::move(model));
}

}  // namespace baton::router
