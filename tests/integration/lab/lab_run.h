// Runs baton-lab to its end.
#pragma once

#include <string>
#include <vector>

namespace baton::lab {

struct LabRun {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

// `arguments` begin with the command; `input` becomes standard input.
LabRun RunLab(std::vector<std::string> arguments, const std::string& input = "");

}  // namespace baton::lab
