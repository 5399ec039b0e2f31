#include "services/lab/commands/write_text.h"

#include <fstream>
#include <ios>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::lab {

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat("cannot write ", path, "; is the disk full?"));
}

}  // namespace baton::lab
