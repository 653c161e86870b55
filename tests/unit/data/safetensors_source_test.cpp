// SPDX-License-Identifier: MIT
#include "railyard/data/safetensors_source.hpp"

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"
#include "unit/data/binary_files.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ry = railyard;

namespace {

std::string tensors_file(const std::string& json, const std::string& data) {
  return binary_files::bytes_of(static_cast<std::uint64_t>(json.size())) + json + data;
}
const std::string two_tensors =
    R"({"__metadata__":{"made":"here"},"y":{"dtype":"U16","shape":[2],"data_offsets":[16,20]},
  "x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}  )";
const std::string two_tensors_data =
    binary_files::bytes_of<float>({1, 2, 3, 4}) + binary_files::bytes_of<std::uint16_t>({5, 65'535});

}  // namespace

TEST_CASE("SafetensorsSource: makes columns of tensors of one first dimension") {
  const TemporaryFolder folder;
  folder.write("a", tensors_file(two_tensors, two_tensors_data));
  folder.write("b", tensors_file(two_tensors, two_tensors_data));
  const ry::SafetensorsSource source{folder / "*", {.label = "y"}};
  CHECK(source.schema() == ry::Schema{{"y", ry::Dtype::i32}, {"x", ry::Dtype::f32, {2}}});
  CHECK(source.label() == "y");
  CHECK(binary_files::all_values<float>(source, "x") == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(binary_files::all_values<std::int32_t>(source, "y") == std::vector<std::int32_t>{5, 65'535, 5, 65'535});
  binary_files::check_order_of(source);
  CHECK(ry::SafetensorsSource{folder / "a", {.columns = {"y"}}}.schema() == ry::Schema{{"y", ry::Dtype::i32}});
  CHECK_THAT(binary_files::error_of(ry::SafetensorsSource{folder / "a", {.columns = {"z"}}}),
             ContainsSubstring("no array \"z\": there are \"y\" \"x\""));
}

TEST_CASE("SafetensorsSource: says what is wrong with a header") {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& bytes) {
    return binary_files::error_of(ry::SafetensorsSource{folder.write("a", bytes)});
  };
  const auto tensor = [&](const std::string& fields, const std::string& data) {
    return error(tensors_file("{\"x\":{" + fields + "}}", data));
  };
  CHECK(tensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", "ab") == "no error");
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", "a"), ContainsSubstring("for them"));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[2],"data_offsets":[1,3])", "abc"), ContainsSubstring("one before ends"));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,2])", "ab"), ContainsSubstring("\"x\""));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,2])", "ab"), ContainsSubstring("takes 1 bytes"));
  CHECK_THAT(tensor(R"("dtype":"F4","shape":[4],"data_offsets":[0,2])", "ab"), ContainsSubstring("type F4"));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[],"data_offsets":[0,1])", "a"), ContainsSubstring("single number"));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", "a"), ContainsSubstring("whole number"));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[1])", "a"), ContainsSubstring("lacks"));
  CHECK_THAT(tensor(R"("dtype":"U8","shape":[1],"other":1)", "a"), ContainsSubstring("unknown key"));
  CHECK_THAT(error(tensors_file(R"({"x":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "")),
             ContainsSubstring("cut off"));
  CHECK_THAT(error(tensors_file("{}", "")), ContainsSubstring("no arrays"));
  CHECK_THAT(error(tensors_file("{\"x\":1,\"x\":1}", "")), ContainsSubstring("header is damaged"));
  CHECK_THAT(error(binary_files::bytes_of(~std::uint64_t{0}) + "{}"), ContainsSubstring("longer than"));
  CHECK_THAT(error("short"), ContainsSubstring("cut off"));
  CHECK_THAT(error(tensors_file(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                R"("y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                                "abc")),
             ContainsSubstring("column \"y\" has 1 samples"));
}
