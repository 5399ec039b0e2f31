// baton-decode: the decode worker, and with --role=both the aggregated one.
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/config/run_main.h"
#include "common/engine/engine.h"
#include "common/rpc/end_at_signal.h"
#include "common/rpc/port_file.h"
#include "common/rpc/shutdown_signal.h"
#include "common/worker/run_worker.h"
#include "common/worker/worker_flags.h"
#include "common/worker/worker_options.h"
#include "services/decode/decode_server.h"

ABSL_FLAG(std::string,
          role,
          "decode",
          "decode: takes KV from prefill workers; both: prefills and decodes by itself");

namespace {

absl::Status RunDecode(const baton::config::Arguments& arguments) {
  baton::rpc::ShutdownSignal signal;
  if (!arguments.empty()) {
    return absl::InvalidArgumentError("baton-decode takes flags only; see --help");
  }
  const std::string role = absl::GetFlag(FLAGS_role);
  BATON_RETURN_IF_ERROR(baton::config::CheckFlagChoice("role", role, {"decode", "both"}));
  std::unique_ptr<baton::decode::DecodeServer> server;
  {
    const baton::rpc::EndAtSignal loading(&signal);
    BATON_ASSIGN_OR_RETURN(
        baton::worker::WorkerOptions options,
        baton::worker::WorkerOptionsFromFlags(
            role == "both" ? baton::engine::Role::kBoth : baton::engine::Role::kDecode,
            BATON_VERSION));
    BATON_RETURN_IF_ERROR(baton::rpc::RemovePortFile(options.port_file));
    BATON_ASSIGN_OR_RETURN(server, baton::decode::DecodeServer::Start(std::move(options)));
  }
  baton::worker::RunUntilSignal(server->worker(), signal);
  server->Shutdown(absl::Seconds(1));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  return baton::config::RunMain(
      argc,
      argv,
      {.name = "baton-decode",
       .usage = "baton-decode --model DIR [flags]: generates tokens from prefilled KV",
       .version = BATON_VERSION},
      RunDecode);
}
