#include "common/worker/operations/get_server_info.h"

#include <cstdint>
#include <string>
#include <utility>

#include "common/engine/engine.h"
#include "common/worker/worker.h"

namespace baton::worker::operations {
namespace {

v1::Role RoleOf(engine::Role role) {
  switch (role) {
    case engine::Role::kPrefill:
      return v1::ROLE_PREFILL;
    case engine::Role::kDecode:
      return v1::ROLE_DECODE;
    case engine::Role::kBoth:
      return v1::ROLE_BOTH;
  }
  return v1::ROLE_UNSPECIFIED;
}

}  // namespace

v1::ServerInfo GetServerInfo(const Worker& worker) {
  const engine::Engine& engine = worker.engine();
  const engine::EngineOptions& options = engine.options();
  const int64_t max_tokens = options.max_sequence_tokens > 0
                                 ? options.max_sequence_tokens
                                 : engine.model().config().max_position_embeddings;
  const int64_t layers = engine.model().kv_shape().layers;
  v1::ServerInfo info;
  info.set_version(worker.options().version);
  info.set_role(RoleOf(options.role));
  info.set_model_name(worker.options().model_name);
  *info.mutable_layout() = worker.layout();
  info.set_incarnation(worker.incarnation());
  info.set_max_sequence_tokens(static_cast<uint32_t>(max_tokens));
  info.set_kv_pool_tokens(
      static_cast<uint64_t>(engine.load().pages_total / layers * options.page_tokens));
  for (std::string& format : engine.kv_formats()) {
    info.add_kv_policies(std::move(format));
  }
  for (const std::string& transport : worker.options().transports) {
    info.add_transports(transport);
  }
  info.set_host(worker.options().host_label);
  info.set_rack(worker.options().rack_label);
  if (worker.accepting()) {
    info.set_control_address(worker.address());
  }
  return info;
}

}  // namespace baton::worker::operations
