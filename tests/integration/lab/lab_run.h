// Runs baton-lab to its end.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton::lab {

struct LabRun {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

// `arguments` begin with the command; `input` becomes standard input.
LabRun RunLab(std::vector<std::string> arguments, const std::string& input = "");

// The lines of a JSONL file.
std::vector<nlohmann::json> ReadRows(const std::string& path);

}  // namespace baton::lab
