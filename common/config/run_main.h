// What every binary does before and after its own work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton::config {

struct Program {
  std::string name;     // "baton-router"
  std::string usage;    // shown by --help
  std::string version;  // shown by --version
};

// Positional arguments of the command line, program name left out.
using Arguments = std::vector<std::string>;

// Writes flag names with underscores ("--input-ids=x" becomes "--input_ids=x"), as absl flags want
// them; users may write either. Values, positional arguments and everything after "--" stay.
// A --flagfile needs underscores.
std::vector<std::string> NormalizeFlagNames(const std::vector<std::string>& arguments);

// Parses the command line into absl flags (--help, --version and --flagfile included; an unknown
// flag or a bad value ends the process with a message and status 1), raises the limit of open
// descriptors (descriptor_limit.h), then runs `body`. A failed status is printed to stderr as
// "<name>: <message>"; the result is the exit status: 0, 2 for kInvalidArgument (the user asked for
// something impossible), else 1. Call once, from main.
int RunMain(int argc,
            char** argv,
            const Program& program,
            const std::function<absl::Status(const Arguments&)>& body);

}  // namespace baton::config
