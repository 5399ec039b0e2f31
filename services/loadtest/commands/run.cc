#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/rpc/shutdown_signal.h"
#include "services/loadtest/commands/commands.h"
#include "services/loadtest/execute.h"
#include "services/loadtest/flags.h"
#include "services/loadtest/load_options.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/summary.h"
#include "services/loadtest/report/console_table.h"
#include "services/loadtest/report/write_results.h"

namespace baton::loadtest {

absl::Status RunLoad() {
  rpc::ShutdownSignal signal;
  BATON_ASSIGN_OR_RETURN(const LoadOptions options, LoadOptionsFromFlags());
  const std::string folder = absl::GetFlag(FLAGS_out);
  BATON_RETURN_IF_ERROR(MakeFolder(folder));
  BATON_ASSIGN_OR_RETURN(const RunResult run, Execute(options, &signal));
  const nlohmann::ordered_json summary = Summarize(run);
  std::cout << ConsoleTable(summary) << std::flush;
  return folder.empty() ? absl::OkStatus()
                        : WriteResults(run, summary, absl::GetFlag(FLAGS_token_times), folder);
}

}  // namespace baton::loadtest
