#include "data/bad_sample.hpp"

#include "base/text.hpp"
#include "data/dataset.hpp"

namespace data {

std::string one_line(std::string_view text, size_t longest) {
  std::string out(text.substr(0, longest));
  // A cut may go through a character: its first bytes go too.
  if (longest < text.size())
    while (!out.empty() && static_cast<unsigned char>(text[out.size()]) >> 6 == 2) out.pop_back();
  bool known = base::is_utf8(out);
  for (char& c : out) {
    unsigned char byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 127 || (byte >= 128 && !known)) c = '?';
  }
  return out;
}

SampleOrSubstitute get_or_substitute(const Dataset& dataset, int64_t index, int64_t position, const Places* places) {
  SampleOrSubstitute out;
  for (int attempt = 0; attempt <= kSubstitutes; ++attempt) {
    out.index = attempt == 0 ? index : (index + (int64_t{1} << (attempt - 1))) % dataset.size();
    try {
      out.sample = dataset.get(out.index, position, places);
      return out;
    } catch (const BadSampleError& e) {
      out.bad.push_back(e.bad());
    }
  }
  base::fail(base::Exit::data,
             "data.{}: {}: {}; nor can any of its {} substitutes be used (the first: {}: {}): is the whole shard "
             "broken?",
             dataset.name(), out.bad[0].key, out.bad[0].why, kSubstitutes, out.bad[1].key, out.bad[1].why);
}

}  // namespace data
