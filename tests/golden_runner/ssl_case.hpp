// SPDX-License-Identifier: Apache-2.0
// Recorded results of the self-supervised family (tests/golden/ssl). A kind of file is a row of
// ssl_case.cpp and a file ssl_KIND.cpp. The contents of a file decide its kind, not its name.
#pragma once

#include <memory>
#include <vector>

#include "case_file.hpp"
#include "compare.hpp"
#include "run_case.hpp"

namespace golden {

// A file with all data that is read before the ranks exchange anything.
class SslCase {
 public:
  virtual ~SslCase() = default;
  // Runs the file's results again and compares them. Collective.
  virtual void run(Report& report) = 0;
};

struct SslKind {
  const char* name;
  bool (*fits)(const CaseFile& file);
  // Reads and checks the file. `file` and `mesh` outlive the case. Error(Exit::config) for options
  // that are unknown, Error(Exit::mesh) for ranks that do not fit.
  std::unique_ptr<SslCase> (*make)(const CaseFile& file, const Settings& settings,
                                   comm::Mesh& mesh);
};

// Returns the kind that fits the file, or null.
const SslKind* find_ssl_kind(const CaseFile& file);

}  // namespace golden
