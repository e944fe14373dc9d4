# SPDX-License-Identifier: Apache-2.0
"""Refuses HDF5 datasets with values that are not stored, for which HDF5 gives zeros without a word. Not a tool itself.

The rules are those of src/io/h5_stored.cpp.
"""
import itertools
import math
import os

import h5py

from console import Failure

DEEPEST = 8     # virtual datasets made of virtual datasets


def check_stored(dataset, path, depth=0):
    """Raises Failure if values of a dataset in the file `path` are missing."""
    if not isinstance(dataset, h5py.Dataset):
        fail(dataset, path, "it is a group")
    if not dataset.size:
        return
    plist = dataset.id.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        check_virtual(dataset, path, plist, depth)
    elif layout == h5py.h5d.CHUNKED:
        check_chunks(dataset, path)
    elif layout == h5py.h5d.CONTIGUOUS and plist.get_external_count():
        check_external(dataset, path, plist)
    elif layout == h5py.h5d.CONTIGUOUS and dataset.id.get_space_status() == h5py.h5d.SPACE_STATUS_NOT_ALLOCATED:
        fail(dataset, path, "it was never written, and HDF5 would give zeros")


def fail(dataset, path, text):
    raise Failure(f"{path}: dataset {dataset.name}: {text}")


def check_chunks(dataset, path):
    firsts = [range(0, length, chunk) for length, chunk in zip(dataset.shape, dataset.chunks)]
    want, have = math.prod(map(len, firsts)), dataset.id.get_num_chunks()
    if have < want:
        row = next(at[0] for at in itertools.product(*firsts) if dataset.id.get_chunk_info_by_coord(at).byte_offset is None)
        fail(dataset, path, f"{want - have} of its {want} chunks were never written, the first at row {row}, and HDF5 would give "
                            "zeros for them: write these rows, or cut the dataset before them")


def prefixed(prefix, path):
    """Returns a folder of an environment variable of HDF5, in which ${ORIGIN} stands for that of the file."""
    origin = "${ORIGIN}"
    return folder_of(path) + prefix[len(origin):] if prefix.startswith(origin) else prefix


def folder_of(path):
    return os.path.dirname(os.path.abspath(path))


def check_external(dataset, path, plist):
    left = dataset.size * dataset.id.get_type().get_size()
    for i in range(plist.get_external_count()):
        name, offset, size = plist.get_external(i)
        name, prefix = os.fsdecode(name), os.environ.get("HDF5_EXTFILE_PREFIX")
        file = os.path.join(prefixed(prefix, path), name) if prefix else name
        end = offset + min(size, left)
        try:
            there = os.stat(file).st_size
        except OSError as error:
            fail(dataset, path, f"its external file '{name}' cannot be read: {error.strerror}. HDF5 looks for it at '{file}'; "
                                "HDF5_EXTFILE_PREFIX names another folder (${ORIGIN} = the folder of the HDF5 file)")
        if there < end:
            fail(dataset, path, f"its external file '{file}' has only {there} of {end} bytes, and HDF5 would give zeros for the rest: "
                                "copy it again")
        left -= min(size, left)
        if not left:
            return


def find_source(name, path):
    """Returns the file of a virtual dataset's source where HDF5 looks for it, in its order; None if there is none."""
    relative = os.path.basename(name) if name.startswith("/") else name
    prefixes = filter(None, os.environ.get("HDF5_VDS_PREFIX", "").split(":"))
    places = [name] * name.startswith("/") + [os.path.join(prefixed(prefix, path), relative) for prefix in prefixes]
    places += [os.path.join(folder_of(path), relative), relative, os.path.join(os.path.dirname(os.path.realpath(path)), relative)]
    return next(filter(os.path.isfile, places), None)


def source_shape(dataset, path, file, name, depth):
    """Checks one source of a virtual dataset, and returns its shape."""
    found = path if file == "." else find_source(file, path)
    if found is None:
        fail(dataset, path, f"its rows are stored in '{file}', which does not exist, and HDF5 would give zeros for them: "
                            "put that file beside this one, or name its folder in HDF5_VDS_PREFIX")
    try:
        with h5py.File(found, "r") as other:
            source = other[name]
            check_stored(source, found, depth + 1)
            return source.shape
    except (OSError, KeyError) as error:
        text = error.args[0] if error.args else error
        fail(dataset, path, f"its source, dataset '{name}' of '{found}', cannot be read, and HDF5 would give zeros for it: {text}")


def check_virtual(dataset, path, plist, depth):
    if depth >= DEEPEST:
        fail(dataset, path, "its virtual datasets are nested too deep or in a circle; copy the rows into one dataset")
    shapes, parts = {}, []      # shapes: of each source
    for i in range(plist.get_virtual_count()):
        key = file, name = os.fsdecode(plist.get_virtual_filename(i)), os.fsdecode(plist.get_virtual_dsetname(i))
        parts.append(plist.get_virtual_vspace(i))
        if "%" in file or "%" in name:      # as many files as there are; they end the rows, and leave no gap
            continue
        if key not in shapes:
            shapes[key] = source_shape(dataset, path, file, name, depth)
        source = plist.get_virtual_srcspace(i)
        if is_mixed(source, shapes[key], parts[-1]):
            fail(dataset, path, f"its source, dataset '{name}' of '{file}', has rows of another size than the virtual dataset expects, and "
                                "HDF5 would mix the rows: make the source or the virtual dataset again")
        if not is_inside(source, shapes[key], parts[-1]):
            fail(dataset, path, f"its source, dataset '{name}' of '{file}', is smaller than the part that the virtual dataset "
                                "takes, and HDF5 would give zeros for the rest: make the source or the virtual dataset again")
    if any(is_endless(part) for part in parts):     # a part grows with its source
        return
    if missing := dataset.size - covered(dataset, parts):
        fail(dataset, path, f"{missing} of its {dataset.size} elements have no source, and HDF5 would give zeros for them")


def is_endless(part):
    return part.get_select_type() == h5py.h5s.SEL_HYPERSLABS and part.is_regular_hyperslab() and any(
        h5py.h5s.UNLIMITED in numbers for numbers in part.get_regular_hyperslab()[2:])


def is_inside(part, shape, to):
    """Returns true if a source of this shape has all that is taken from it."""
    if is_endless(part) or is_endless(to):      # as much as there is
        return True
    if not part.get_simple_extent_ndims():      # the whole source, of any shape
        return math.prod(shape) >= to.get_select_npoints()
    last = part.get_select_bounds()[1]
    return len(last) == len(shape) and all(end < length for end, length in zip(last, shape))


def is_mixed(part, shape, to):
    """Returns true if the whole of a larger source is taken, whose rows have another size. HDF5 takes its first elements."""
    if is_endless(part) or is_endless(to) or part.get_simple_extent_ndims() or math.prod(shape) <= to.get_select_npoints():
        return False
    first, last = to.get_select_bounds()
    sizes = [int(b - a + 1) for a, b in zip(first, last)]
    rows = list(shape[1:])
    return len(sizes) < len(rows) or sizes[len(sizes) - len(rows):] != rows


def covered(dataset, parts):
    """Returns how many elements have a source. Parts may overlap."""
    union = dataset.id.get_space()
    union.select_none()
    for part in parts:
        kind = part.get_select_type()
        if kind == h5py.h5s.SEL_ALL:
            return dataset.size
        if kind == h5py.h5s.SEL_HYPERSLABS and part.is_regular_hyperslab():
            start, stride, count, block = part.get_regular_hyperslab()
            union.select_hyperslab(start, count, stride, block, op=h5py.h5s.SELECT_OR)
        elif kind == h5py.h5s.SEL_HYPERSLABS:
            for first, last in part.get_select_hyper_blocklist():
                size = tuple(int(b - a + 1) for a, b in zip(first, last))
                union.select_hyperslab(tuple(map(int, first)), (1,) * len(size), block=size, op=h5py.h5s.SELECT_OR)
    return union.get_select_npoints()
