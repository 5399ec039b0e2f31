// baton-prefill: the prefill worker.
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/config/run_main.h"
#include "common/engine/engine.h"
#include "common/rpc/end_at_signal.h"
#include "common/rpc/port_file.h"
#include "common/rpc/shutdown_signal.h"
#include "common/worker/run_worker.h"
#include "common/worker/worker_flags.h"
#include "common/worker/worker_options.h"
#include "services/prefill/prefill_server.h"

namespace {

absl::Status RunPrefill(const baton::config::Arguments& arguments) {
  baton::rpc::ShutdownSignal signal;
  if (!arguments.empty()) {
    return absl::InvalidArgumentError("baton-prefill takes flags only; see --help");
  }
  std::unique_ptr<baton::prefill::PrefillServer> server;
  {
    const baton::rpc::EndAtSignal loading(&signal);
    BATON_ASSIGN_OR_RETURN(
        baton::worker::WorkerOptions options,
        baton::worker::WorkerOptionsFromFlags(baton::engine::Role::kPrefill, BATON_VERSION));
    BATON_RETURN_IF_ERROR(baton::rpc::RemovePortFile(options.port_file));
    BATON_ASSIGN_OR_RETURN(server, baton::prefill::PrefillServer::Start(std::move(options)));
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
      {.name = "baton-prefill",
       .usage = "baton-prefill --model DIR [flags]: runs prompts and ships their KV to decode",
       .version = BATON_VERSION},
      RunPrefill);
}
