#include "common/config/run_main.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/str_cat.h"

#include "common/config/descriptor_limit.h"

namespace baton::config {
namespace {

// --help lists the flags that binaries and shared folders define, not those of libraries.
bool IsOurFlag(absl::string_view file) {
  const std::string path(file);
  return path.find("services/") != std::string::npos || path.find("common/") != std::string::npos;
}

void SetUsage(const Program& program) {
  absl::SetProgramUsageMessage(program.usage);
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = IsOurFlag;
  usage.contains_helpshort_flags = IsOurFlag;
  usage.version_string = [program] {
    return absl::StrCat(program.name, " ", program.version, "\n");
  };
  usage.normalize_filename = [](absl::string_view file) {
    const std::string path(file);
    const size_t begin = std::min(path.find("services/"), path.find("common/"));
    return begin == std::string::npos ? path : path.substr(begin);
  };
  absl::SetFlagsUsageConfig(usage);
}

Arguments ParseFlags(int argc, char** argv) {
  std::vector<std::string> normalized =
      NormalizeFlagNames(std::vector<std::string>(argv, argv + argc));
  std::vector<char*> pointers;
  pointers.reserve(normalized.size());
  for (std::string& argument : normalized) {
    pointers.push_back(argument.data());
  }
  const std::vector<char*> positional =
      absl::ParseCommandLine(static_cast<int>(pointers.size()), pointers.data());
  return Arguments(positional.begin() + 1, positional.end());
}

absl::Status RunGuarded(const std::function<absl::Status(const Arguments&)>& body,
                        const Arguments& arguments) {
  try {
    return body(arguments);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace

std::vector<std::string> NormalizeFlagNames(const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  bool flags_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string argument = arguments[i];
    flags_ended = flags_ended || argument == "--";
    if (i > 0 && !flags_ended && argument.size() > 2 && argument.substr(0, 2) == "--") {
      const size_t name_end = std::min(argument.find('='), argument.size());
      std::replace(
          argument.begin() + 2, argument.begin() + static_cast<ptrdiff_t>(name_end), '-', '_');
    }
    result.push_back(std::move(argument));
  }
  return result;
}

int RunMain(int argc,
            char** argv,
            const Program& program,
            const std::function<absl::Status(const Arguments&)>& body) {
  SetUsage(program);
  const Arguments arguments = ParseFlags(argc, argv);
  RaiseDescriptorLimit();
  const absl::Status status = RunGuarded(body, arguments);
  if (status.ok()) {
    return 0;
  }
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace baton::config
