// The keys that a KV policy's parameter list may have, as a table per policy.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/kv/codec/policy_params.h"

namespace baton::kv {

// One key of `Params`.
template <typename Params>
struct PolicyField {
  std::string_view key;
  std::string allowed;    // values, in words: "an integer in 0..64"
  bool required = false;  // has no default
  // Sets the member; false when `text` is not an allowed value, and then `params` is unchanged.
  std::function<bool(std::string_view text, Params& params)> parse;
  // The shortest text that `parse` reads back to the same value.
  std::function<std::string(const Params& params)> print;
};

// The fields in the order of the grammar; empty for a policy without parameters. Specialised for
// every alternative of KvResidentPolicy and KvBaselinePolicy; built once, thread-safe.
template <typename Params>
const std::vector<PolicyField<Params>>& PolicyFields() {
  static const auto& fields = *new std::vector<PolicyField<Params>>();
  return fields;
}
template <>
const std::vector<PolicyField<DiffKvPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<ShadowKvPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<SnapKvPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<H2oPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<StreamingPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<QuestPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<LokiPolicy>>& PolicyFields();
template <>
const std::vector<PolicyField<StaticPolicy>>& PolicyFields();

// What is wrong between fields that are each in range ("`al` is 2; ..."), or empty.
template <typename Params>
std::string PolicyConflict(const Params& /*params*/) {
  return "";
}
template <>
std::string PolicyConflict(const DiffKvPolicy& params);
template <>
std::string PolicyConflict(const ShadowKvPolicy& params);
template <>
std::string PolicyConflict(const StaticPolicy& params);

}  // namespace baton::kv
