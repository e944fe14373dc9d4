// SPDX-License-Identifier: Apache-2.0
// Writing one checkpoint, in phases. The file has a temporary name until it is complete, checked
// and on disk, so whatever happens the older ones stay as they were. All ranks write their parts of
// the one HDF5 file at the same time, at offsets that they know; its structure (groups, dataset
// headers, attributes) is made by rank 0 alone, in memory, and written last. Alone because HDF5's
// collective creation makes every rank do all the work (measured with 1,049 datasets on 2 cores:
// 0.13 s alone, 0.32 s by 2 ranks, 0.65 s by 4), cannot run beside training, and leaves the others
// waiting when one rank fails inside it.
//
// The phases marked (io) touch no MPI and run in another thread; between two of them all ranks
// agree that all have done it (saver.hpp does both).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/layout.hpp"
#include "checkpoint/options.hpp"
#include "comm/comm.hpp"
#include "io/files.hpp"

namespace checkpoint {

struct BlockHash {
  int64_t block = 0;  // counted over all entries of the layout
  uint64_t hash = 0;
};

// Where everything lay in the last file of a run, which mostly says where it will lie in the next.
struct KnownPlaces {
  std::string key;     // structure_key
  std::string places;  // as Save::create returns it
};

class Save {
 public:
  // All ranks. Checks that their parts cover every element once. Keeps a reference to `state`,
  // whose memory is read by write().
  Save(comm::Comm& comm, std::string directory, const State& state);
  // (io) Rank 0 makes the file under its temporary name, and its directory again if that was
  // removed, and returns where everything lies in it. `keep_free`: bytes that must be left on the
  // file system. If `known` are the places of such a state, the structure is made later, beside
  // write(), which keeps nobody waiting; else they become so.
  std::string create(int64_t keep_free, KnownPlaces& known);
  // What create() returned on rank 0, before write() on every rank.
  void set_places(const std::string& places);
  // (io) This rank's parts; on disk, and blocks that lie wholly inside them read back, when it
  // returns.
  void write();
  // (io) After everybody's write: hashes of the blocks that begin in this rank's parts. Blocks that
  // several ranks wrote are read; on network file systems the file must be opened anew to see the
  // others' bytes.
  std::vector<BlockHash> verify();
  // (io, rank 0 alone) Checksums from all ranks' hashes, header, rename. Before it gets its name,
  // files of steps after `since` that are not the run's `own` are put aside: there must be no
  // moment at which one of them would be taken for its predecessor or successor.
  void commit(const std::vector<BlockHash>& hashes, int64_t since, const std::set<int64_t>& own);
  // (io, rank 0 alone) Removes the temporary file.
  void discard() noexcept;

  const FileLayout& layout() const { return layout_; }
  std::string file() const;  // name within the directory
  std::string path() const { return directory_ + "/" + file(); }

 private:
  struct Piece {  // a part of a tensor that this rank writes
    int entry;
    int64_t begin, end;  // bytes within the tensor
    const char* data;
    std::vector<uint64_t> whole;  // hashes of the blocks that lie wholly inside, from the first on
  };
  class Writer;
  void check_coverage();
  void make();
  void prove(const io::File& file, Piece& piece) const;
  std::string temporary() const { return path() + ".tmp"; }

  comm::Comm& comm_;
  std::string directory_;
  const State& state_;
  FileLayout layout_;
  std::string structure_;  // rank 0: what HDF5 makes of it
  std::vector<Piece> pieces_;
};

// The bytes of a file of such a state; `known` become its places.
int64_t plan_places(const State& state, KnownPlaces& known);

}  // namespace checkpoint
