#include "services/lab/commands/calibrate.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/eval_case.h"
#include "common/eval/eval_flags.h"
#include "common/eval/policy_table.h"
#include "common/eval/result_writer.h"
#include "common/kv/calibration/calibration_file.h"
#include "common/text/load_tokenizer.h"
#include "common/worker/worker_options.h"
#include "services/lab/calibrate/calibrator.h"
#include "services/lab/calibrate/choose.h"
#include "services/lab/calibrate/curve_svg.h"
#include "services/lab/commands/eval.h"
#include "services/lab/commands/table.h"
#include "services/lab/commands/write_text.h"
#include "services/lab/flags.h"
#include "services/lab/table/table_model.h"

ABSL_FLAG(std::vector<std::string>,
          families,
          (std::vector<std::string>{"diffkv", "shadowkv"}),
          "calibrate: list of diffkv, shadowkv and, for a SwiftKV model, hidden8+diffkv, which "
          "without being named takes what diffkv does.");
ABSL_FLAG(double, max_loss, 0.01, "calibrate: net loss that a default may have, of all cases.");
ABSL_FLAG(double,
          max_task_loss,
          0.04,
          "calibrate: the same of every single task's cases; one case is always allowed.");

ABSL_FLAG(double,
          diffkv_max_bytes,
          0.0,
          "calibrate: most resident bytes of diffkv, as a share of bf16 KV: the smallest loss that "
          "they give is chosen; 0: the fewest bytes that the loss limits allow.");
ABSL_FLAG(double, shadowkv_max_bytes, 0.0, "calibrate: the same of shadowkv.");
ABSL_FLAG(double,
          shadowkv_max_attended,
          0.0,
          "calibrate: the same for the tokens that shadowkv attends to, as a share of the prompt.");
ABSL_FLAG(double,
          hidden8_diffkv_max_bytes,
          0.0,
          "calibrate: the same of hidden8+diffkv, for bytes sent.");

ABSL_DECLARE_FLAG(std::string, cases);
ABSL_DECLARE_FLAG(std::string, subset);
ABSL_DECLARE_FLAG(int64_t, limit);

namespace baton::lab {
namespace {

absl::Status CheckShare(const char* name, double value) {
  if (!(value >= 0.0 && value < 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --", name, " is ", value, "; it must be in [0, 1)"));
  }
  return absl::OkStatus();
}

// A family by its name in --families.
struct Family {
  std::string_view name;
  absl::Status (Calibrator::*calibrate)();
};

// In the order they are calibrated in.
constexpr std::string_view kHidden8DiffKv = "hidden8+diffkv";
constexpr std::array<Family, 3> kFamilies = {
    {{"diffkv", &Calibrator::CalibrateDiffKv},
     {"shadowkv", &Calibrator::CalibrateShadowKv},
     {kHidden8DiffKv, &Calibrator::CalibrateHidden8DiffKv}}};

bool IsWanted(std::string_view family) {
  const std::vector<std::string> wanted = absl::GetFlag(FLAGS_families);
  return std::ranges::find(wanted, family) != wanted.end();
}

absl::Status CheckFamilies() {
  const std::vector<std::string> families = absl::GetFlag(FLAGS_families);
  if (families.empty()) {
    return absl::InvalidArgumentError("flag --families is empty; there is nothing to calibrate");
  }
  for (const std::string& name : families) {
    BATON_RETURN_IF_ERROR(config::CheckFlagChoice(
        "families", name, {kFamilies[0].name, kFamilies[1].name, kFamilies[2].name}));
  }
  return absl::OkStatus();
}

// Before hours are spent on the other families.
absl::Status CheckModelHasFamilies(const TableModel& model) {
  if (IsWanted(kHidden8DiffKv) && model.full_layers() == model.dimensions().layers) {
    return absl::InvalidArgumentError(absl::StrCat("flag --families: ",
                                                   std::string(kHidden8DiffKv),
                                                   " needs a SwiftKV model, whose upper layers "
                                                   "are made from a hidden state"));
  }
  return absl::OkStatus();
}

absl::Status CheckFlags() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("model", absl::GetFlag(FLAGS_model)));
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("out", absl::GetFlag(FLAGS_out)));
  BATON_RETURN_IF_ERROR(CheckFamilies());
  BATON_RETURN_IF_ERROR(CheckShare("max_loss", absl::GetFlag(FLAGS_max_loss)));
  BATON_RETURN_IF_ERROR(CheckShare("max_task_loss", absl::GetFlag(FLAGS_max_task_loss)));
  BATON_RETURN_IF_ERROR(CheckShare("diffkv_max_bytes", absl::GetFlag(FLAGS_diffkv_max_bytes)));
  BATON_RETURN_IF_ERROR(CheckShare("shadowkv_max_bytes", absl::GetFlag(FLAGS_shadowkv_max_bytes)));
  BATON_RETURN_IF_ERROR(
      CheckShare("shadowkv_max_attended", absl::GetFlag(FLAGS_shadowkv_max_attended)));
  BATON_RETURN_IF_ERROR(
      CheckShare("hidden8_diffkv_max_bytes", absl::GetFlag(FLAGS_hidden8_diffkv_max_bytes)));
  if (!absl::GetFlag(FLAGS_kv_calibration).empty()) {
    return absl::InvalidArgumentError(
        "flag --kv_calibration does not apply: a calibration starts from the grammar's defaults");
  }
  return absl::OkStatus();
}

std::optional<double> Cap(double share) {
  return share > 0.0 ? std::optional(share) : std::nullopt;
}

Caps CapsFromFlags() {
  return {.diffkv_bytes = Cap(absl::GetFlag(FLAGS_diffkv_max_bytes)),
          .shadowkv_attended = Cap(absl::GetFlag(FLAGS_shadowkv_max_attended)),
          .shadowkv_bytes = Cap(absl::GetFlag(FLAGS_shadowkv_max_bytes)),
          .hidden8_diffkv_wire = Cap(absl::GetFlag(FLAGS_hidden8_diffkv_max_bytes))};
}

// The command without the folders of the machine it ran on.
std::string CommandLine() {
  const auto name = [](const std::string& path) {
    const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
    return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
  };
  std::string command = absl::StrCat("baton-lab calibrate --model ",
                                     name(absl::GetFlag(FLAGS_model)),
                                     " --cases ",
                                     name(absl::GetFlag(FLAGS_cases)));
  if (!absl::GetFlag(FLAGS_subset).empty()) {
    absl::StrAppend(&command, " --subset ", name(absl::GetFlag(FLAGS_subset)));
  }
  if (absl::GetFlag(FLAGS_limit) > 0) {
    absl::StrAppend(&command, " --limit ", absl::GetFlag(FLAGS_limit));
  }
  absl::StrAppend(&command,
                  " --families ",
                  absl::StrJoin(absl::GetFlag(FLAGS_families), ","),
                  " --max_loss ",
                  absl::GetFlag(FLAGS_max_loss),
                  " --max_task_loss ",
                  absl::GetFlag(FLAGS_max_task_loss));
  const Caps caps = CapsFromFlags();
  for (const auto& [flag, cap] :
       {std::pair(" --diffkv_max_bytes ", caps.diffkv_bytes),
        std::pair(" --shadowkv_max_attended ", caps.shadowkv_attended),
        std::pair(" --shadowkv_max_bytes ", caps.shadowkv_bytes),
        std::pair(" --hidden8_diffkv_max_bytes ", caps.hidden8_diffkv_wire)}) {
    if (cap.has_value()) {
      absl::StrAppend(&command, flag, *cap);
    }
  }
  return command;
}

// Named after what the rows are of, so that --resume takes up no other model's.
std::string RowsPath(const kv::CalibratedModel& model) {
  return absl::StrCat(absl::GetFlag(FLAGS_out),
                      ".",
                      absl::Hex(model.fingerprint, absl::kZeroPad16),
                      ".",
                      absl::GetFlag(FLAGS_compute),
                      ".rows.jsonl");
}

// The limits are shares: of few cases they allow nothing, and chance decides.
void WarnOfFewCases(double max_loss, int64_t cases) {
  if (max_loss * static_cast<double>(cases) < 1.0) {
    std::cerr << "calibrate: --max_loss of " << max_loss << " is less than one of " << cases
              << " cases: what is chosen rests on too few of them\n";
  }
}

absl::Status Sweep(Calibrator& calibrator) {
  for (const Family& family : kFamilies) {
    if (IsWanted(family.name)) {
      BATON_RETURN_IF_ERROR((calibrator.*family.calibrate)());
    }
  }
  return absl::OkStatus();
}

absl::Status WriteFiles(const kv::CalibrationFile& file) {
  const std::string out = absl::GetFlag(FLAGS_out);
  const std::string picture = std::filesystem::path(out).replace_extension(".svg").string();
  BATON_RETURN_IF_ERROR(WriteText(out, kv::CalibrationToJson(file)));
  BATON_RETURN_IF_ERROR(WriteText(picture, CurveToSvg(file)));
  std::cerr << "calibrate: wrote " << out << " and " << picture << "\n";
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCalibrate() {
  BATON_RETURN_IF_ERROR(CheckFlags());
  BATON_ASSIGN_OR_RETURN(std::vector<eval::EvalCase> cases, eval::CasesFromFlags());
  BATON_ASSIGN_OR_RETURN(worker::WorkerOptions options, EvalOptionsFromFlags());
  const LossLimits limits = {.total = absl::GetFlag(FLAGS_max_loss),
                             .task = absl::GetFlag(FLAGS_max_task_loss)};
  const int64_t pool_bytes = options.engine.kv_pool_bytes;
  BATON_ASSIGN_OR_RETURN(const auto tokenizer, text::LoadTokenizer(options.model_dir));
  BATON_ASSIGN_OR_RETURN(const auto models, TableModelsFromFlags(std::move(options)));
  BATON_RETURN_IF_ERROR(CheckModelHasFamilies(*models.front()));
  const kv::CalibratedModel& identity = models.front()->identity();
  BATON_ASSIGN_OR_RETURN(const auto writer,
                         eval::ResultWriter::Open(RowsPath(identity), absl::GetFlag(FLAGS_resume)));
  const auto count = static_cast<int64_t>(cases.size());
  WarnOfFewCases(limits.total, count);
  Calibrator calibrator({.cases = std::move(cases),
                         .limits = limits,
                         .caps = CapsFromFlags(),
                         .pool_bytes = pool_bytes},
                        tokenizer,
                        models,
                        *writer);
  BATON_RETURN_IF_ERROR(Sweep(calibrator));
  std::cout << eval::FormatPolicyTable(writer->rows());
  return WriteFiles({.model = identity,
                     .calibration = calibrator.calibration(),
                     .curve = calibrator.curve(),
                     .made = {.command = CommandLine(),
                              .rule = DescribeRule(limits, CapsFromFlags()),
                              .compute = absl::GetFlag(FLAGS_compute),
                              .cases = count}});
}

}  // namespace baton::lab
