#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

#include "common/text/jinja/budget.h"
#include "common/text/jinja/template.h"

namespace baton::text::jinja {
namespace {

absl::StatusOr<std::string> Render(std::string_view source,
                                   const nlohmann::ordered_json& variables = {}) {
  absl::StatusOr<Template> compiled = Template::Compile(source);
  if (!compiled.ok()) return compiled.status();
  Dict context;
  for (const auto& [name, value] : variables.items())
    context.Set(Value(name), *ValueFromJson(value));
  return compiled->Render(context, absl::FromUnixSeconds(1721952000));  // 26 Jul 2024
}

struct Case {
  std::string source;
  std::string expected;
};

void ExpectAll(const std::vector<Case>& cases, const nlohmann::ordered_json& variables = {}) {
  for (const Case& entry : cases) {
    const absl::StatusOr<std::string> text = Render(entry.source, variables);
    ASSERT_TRUE(text.ok()) << entry.source << "\n" << text.status();
    EXPECT_EQ(*text, entry.expected) << entry.source;
  }
}

void ExpectErrors(const std::vector<Case>& cases) {
  for (const Case& entry : cases) {
    const absl::Status status = Render(entry.source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << entry.source;
    EXPECT_NE(std::string(status.message()).find(entry.expected), std::string::npos)
        << entry.source << "\n"
        << status;
  }
}

TEST(JinjaWhitespaceTest, BlocksTakeTheirLineWithThem) {
  ExpectAll({
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a {%- if true %} b {%- endif -%}  c", "a bc"},
      {"x\n  {%+ if true %}y{% endif +%}\nz", "x\n  y\nz"},
      {"  {# note #}\nx", "x"},
      {"a {{- 1 -}} b", "a1b"},
      {"{{ 1 }}\nx", "1\nx"},
      {"{% raw %}{{ x }}{% endraw %}!", "{{ x }}!"},
      {"a\r\nb\r\n", "a\nb"},
  });
}

TEST(JinjaExpressionTest, PrecedenceIsThatOfJinja) {
  ExpectAll({
      {"{{ 1 + 2 * 3 - 4 }}", "3"},
      {"{{ 'a' ~ 1 + 'b' ~ 2 }}", "a1b2"},
      {"{{ 2 ** 3 ** 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "64 -4 2 3.5"},
      {"{{ not true or true }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }}", "True True False"},
      {"{{ 'x' if false else 'y' }}{{ 'z' if false }}", "y"},
      {"{{ 1 in [1, 2] }} {{ 3 not in (1, 2) }} {{ 'b' in 'abc' }} {{ 'k' in {'k': 1} }}",
       "True True True True"},
      {"{{ -1|abs }} {{ 'a' 'b' }} {{ 1_000 }} {{ 1e3 }} {{ 0.1 }}", "1 ab 1000 1000.0 0.1"},
      {"{{ {'a': {'b': [1, none, true, 'it\\'s']}} }}", "{'a': {'b': [1, None, True, \"it's\"]}}"},
      {"{{ (1,) }}{{ () }}", "(1,)()"},
      {"{{ x is not defined and y is undefined }}", "True"},
      {"{{ 0 or 'b' }}{{ 'a' and 'c' }}", "bc"},
  });
}

TEST(JinjaExpressionTest, SlicesAndIndexesCountCharacters) {
  ExpectAll({
      {"{{ [1, 2, 3][::-1] }}{{ [1, 2, 3][1:] }}{{ [1, 2, 3][-2:-1] }}", "[3, 2, 1][2, 3][2]"},
      {"{{ 'añb'[1] }}{{ 'añb'[::-1] }}{{ 'añb'[-1] }}{{ 'añb'[5] }}", "ñbñab"},
      {"{{ [1, 2, 3, 4][3:0:-2] }}{{ [1][9223372036854775807:] }}{{ [1, 2][::-9223372036854775807] "
       "}}",
       "[4, 2][][2]"},
  });
}

TEST(JinjaStatementTest, LoopsKnowTheirPlace) {
  ExpectAll({
      {"{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}{{ ',' if not "
       "loop.last }}{% endfor %}",
       "1/2,2/2"},
      {"{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"},
      {"{% for x in [] %}x{% else %}empty{% endfor %}", "empty"},
      {"{% for x in 'ab' %}{{ loop.cycle('-', '+') }}{{ x }}{{ loop.nextitem }}{% endfor %}",
       "-ab+b"},
      {"{% for x in range(9) %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif "
       "%}{{ x }}{% endfor %}",
       "013"},
      {"{% set n = 1 %}{% for x in [1] %}{% set n = 2 %}{% endfor %}{{ n }}", "1"},
      {"{% set ns = namespace(n=1) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ "
       "ns.n }}",
       "4"},
  });
}

TEST(JinjaStatementTest, SetBlockAndMacrosCaptureText) {
  ExpectAll({
      {"{% set t %}a{{ 1 }}{% endset %}[{{ t }}]", "[a1]"},
      {"{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=2) "
       "}}",
       "1xNone 1x2"},
      {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
       "3210"},
      {"{% generation %}g{% endgeneration %}", "g"},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}", "12"},
  });
}

TEST(JinjaFilterTest, FiltersGiveWhatJinjaGives) {
  ExpectAll({
      {"{{ '  a '|trim }}|{{ [1, 2]|length }}|{{ [1, 'b']|join('-') }}|{{ x|default('d') }}|{{ "
       "''|default('d', true) }}",
       "a|2|1-b|d|d"},
      {"{{ 'aB'|upper }}{{ 'aB'|lower }}{{ 'hello world'|title }}{{ 'aB'|capitalize }}",
       "ABabHello WorldAb"},
      {"{{ 'aaa'|replace('a', 'b', 2) }}{{ [3, 1, 2]|sort }}{{ ['b', 'A']|sort }}{{ [1, 1, "
       "2]|unique|list }}",
       "bba[1, 2, 3]['A', 'b'][1, 2]"},
      {"{{ {'b': 1, 'a': 2}|dictsort }}{{ {'a': 1}|items|list }}",
       "[('a', 2), ('b', 1)][('a', 1)]"},
      {"{{ 'a\nb\n\nc'|indent(2) }}", "a\n  b\n\n  c"},
      {"{{ [1, 2, 3]|select('odd')|list }}{{ ['a', 'b']|reject('equalto', 'a')|list }}",
       "[1, 3]['b']"},
      {"{{ [{'r': 'u'}, {'r': 's'}]|selectattr('r', 'equalto', 'u')|list }}", "[{'r': 'u'}]"},
      {"{{ [{'r': 'u'}, {}]|rejectattr('r')|list }}{{ [{'r': 'u'}]|map(attribute='r')|join }}{{ "
       "['a']|map('upper')|list }}",
       "[{}]u['A']"},
      {"{{ '42'|int + 1 }}{{ '1.5'|float }}{{ 'x'|int(7) }}{{ 2.5|round }}{{ 1|string + 'a' }}",
       "431.572.01a"},
      {"{{ 'abc'|first }}{{ [1, 2]|last }}{{ 'ab'|list }}{{ [1, 2]|reverse|list }}",
       "a2['a', 'b'][2, 1]"},
      {"{{ '<a&b>'|e }}{{ [1, 5]|max }}{{ [1, 5]|sum }}", "&lt;a&amp;b&gt;56"},
  });
}

TEST(JinjaFilterTest, JsonIsThatOfPythonWithoutHtmlEscapes) {
  const nlohmann::ordered_json variables = {{"v",
                                             {{"z", "<é>\"\n"},
                                              {"a", {1, 2.0, nullptr, true}},
                                              {"e", nlohmann::ordered_json::object()}}}};
  ExpectAll(
      {
          {"{{ v|tojson }}", R"({"z": "<é>\"\n", "a": [1, 2.0, null, true], "e": {}})"},
          {"{{ {'a': [1]}|tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ]\n}"},
          {"{{ {'b': 1, 'a': 'é'}|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) "
           "}}",
           R"({"a":"\u00e9","b":1})"},
      },
      variables);
}

TEST(JinjaTestsTest, TestsTellKindsApart) {
  ExpectAll({
      {"{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 1 is number }}{{ true is "
       "boolean }}",
       "TrueTrueTrueTrueTrue"},
      {"{{ none is none }}{{ true is true }}{{ 1 is true }}{{ false is false }}{{ 3 is odd }}{{ 3 "
       "is even }}",
       "TrueTrueFalseTrueTrueFalse"},
      {"{{ 2 is in [1, 2] }}{{ 6 is divisibleby 3 }}{{ 'a' is not string }}{{ [] is sequence }}{{ "
       "1 is sequence }}",
       "TrueTrueFalseTrueFalse"},
      {"{{ x is defined or 1 is eq 1 }}{{ 1 is integer }}{{ 1.0 is integer }}", "TrueTrueFalse"},
  });
}

TEST(JinjaMethodTest, StringAndDictMethodsAreThoseOfPython) {
  ExpectAll({
      {"{{ ' a '.strip() }}|{{ 'xxax'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}|{{ 'a,b,c'.split(',', "
       "1) }}|{{ ' a  b '.split() }}",
       "a|ax|a|['a', 'b,c']|['a', 'b']"},
      {"{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'aa'.replace('a', 'bc') }}",
       "TrueTruebcbc"},
      {"{{ 'they\\'re x'.title() }}{{ 'straße'.upper() }}{{ 'a-b'.find('b') }}{{ ','.join(['a', "
       "'b']) }}",
       "They'Re XSTRASSE2a,b"},
      {"{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': "
       "1}.keys()|list }}{{ {'a': 1}.values()|list }}",
       "1None2['a'][1]"},
      {"{{ {'items': 1}['items'] }}{{ {'x': 1}.x }}{{ {'x': 1}['y'] }}{{ 'a\nb'.splitlines() }}",
       "11['a', 'b']"},
  });
}

TEST(JinjaGlobalTest, DateIsThatOfTheClockArgument) {
  ExpectAll({{"{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"}});
}

TEST(JinjaErrorTest, RaiseExceptionGivesTheMessageOfTheTemplate) {
  const absl::Status status = Render("{{ raise_exception('roles must alternate') }}").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "roles must alternate");
}

TEST(JinjaErrorTest, MistakesAreNamedWithTheirPlace) {
  ExpectErrors({
      {"a\n{% mystery %}", "line 2"},
      {"{{ x", "end of template"},
      {"{% if a %}", "endif"},
      {"{{ 1 + }}", "expected an expression"},
      {"{{ x.y.z }}", "'x' is undefined"},
      {"{{ x() }}", "'x' is undefined"},
      {"{{ 1|mystery }}", "mystery"},
      {"{{ 1 is mystery }}", "mystery"},
      {"{{ 1 + 'a' }}", "int and str"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 9223372036854775807 + 1 }}", "64 bits"},
      {"{{ 99999999999999999999 }}", "out of range"},
      {"{{ [1].append(2) }}", "change"},
      {"{% set x.y = 1 %}", "namespace"},
      {"{% break %}", "outside a loop"},
      {"{% include 'x' %}", "not supported"},
      {"{{ '\\ud800' }}", "escape"},
      {"{{ f(*a) }}", "unpacking"},
      {"{{ undefined_thing|tojson }}", "JSON"},
  });
}

TEST(JinjaLimitTest, NoTemplateRunsLongOrDeep) {
  std::string parentheses = std::string(5000, '(') + "1" + std::string(5000, ')');
  std::string chain = "1";
  std::string filters = "1";
  std::string blocks;
  for (int i = 0; i < 5000; ++i) {
    chain += "+1";
    filters += "|abs";
    blocks += "{% if 1 %}";
  }
  const std::vector<std::string> sources = {
      "{{ " + parentheses + " }}",
      "{{ " + chain + " }}",
      "{{ " + filters + " }}",
      "{{ " + std::string(5000, '-') + "1 }}",
      blocks,
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{{ 'a' * 999999999999 }}",
      "{{ [1] * 999999999999 }}",
      "{{ ('a' * 9999999).replace('a', 'b' * 999999) }}",
      "{{ range(100001) }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{{ (['a'] * 999999)|join('x' * 99999) }}",
  };
  for (const std::string& source : sources) {
    EXPECT_EQ(Render(source).status().code(), absl::StatusCode::kInvalidArgument)
        << source.substr(0, 80);
  }
}

TEST(JinjaLimitTest, NamespaceThatHoldsItselfPrintsAndCompares) {
  ExpectAll({{"{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me == [ns] }}{{ ns }}",
              "True<namespace>"}});
}

TEST(JinjaValueTest, BadRequestDataIsRefused) {
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 100; ++i) deep = nlohmann::ordered_json::array({deep});
  EXPECT_FALSE(ValueFromJson(deep).ok());
  EXPECT_FALSE(ValueFromJson("\xFF").ok());
  EXPECT_FALSE(ValueFromJson(18446744073709551615ull).ok());
}

}  // namespace
}  // namespace baton::text::jinja
