// baton-prefill: the prefill worker.
#include "common/base/status_macros.h"
#include "common/config/run_main.h"
#include "common/rpc/shutdown_signal.h"
#include "common/worker/run_worker.h"
#include "common/worker/worker_flags.h"
#include "services/prefill/prefill_server.h"

namespace {

absl::Status RunPrefill(const baton::config::Arguments& arguments) {
  baton::rpc::ShutdownSignal signal;
  if (!arguments.empty()) {
    return absl::InvalidArgumentError("baton-prefill takes flags only; see --help");
  }
  BATON_ASSIGN_OR_RETURN(
      baton::worker::WorkerOptions options,
      baton::worker::WorkerOptionsFromFlags(baton::engine::Role::kPrefill, BATON_VERSION));
  BATON_ASSIGN_OR_RETURN(const auto server,
                         baton::prefill::PrefillServer::Start(std::move(options)));
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
