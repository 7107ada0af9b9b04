#!/bin/bash
# The folder that `pack` makes is complete: the sources of pyannulus's extension find what they include, every program is there that the parts name, and a
# machine without a GPU is told so. frameworks_test.sh TORCH_WHEEL PYTHON_WHEEL SETTING_ROWS. The programs themselves need PyTorch: `DEVICE=cpu FOLDER/run`.
set -euo pipefail
folder=$TEST_TMPDIR/folder wheels=$TEST_TMPDIR/wheels
export RUNFILES_DIR=$TEST_SRCDIR
for wheel in "$1" "$2"; do "$wheel" "$wheels"; done
tests/gpu/frameworks/lay_out.sh "$folder" "$wheels" "$3"

# Stands in for PyTorch, which Debian's Python need not have.
mkdir -p "$TEST_TMPDIR/modules/torch"
cat >"$TEST_TMPDIR/modules/torch/__init__.py" <<'MODULE'
import types
__version__ = "0"
cuda = types.SimpleNamespace(is_available=lambda: False)
MODULE
export PYTHONPATH=$TEST_TMPDIR/modules PYTHONDONTWRITEBYTECODE=1 PYTHON=/usr/bin/python3
status=0
out=$("$folder/run" about) || status=$?
[[ $status -eq 77 && $out == "not run: PyTorch sees no GPU"* ]] || { echo "$status $out"; exit 1; }

for program in $(grep -o 'programs/[a-z_]*\.py' "$folder/run" | sort -u) programs/torch_{cuda_ranks,cuda_graphs,values,model}.py; do
  [[ -e $folder/$program ]] || { echo "no $program"; exit 1; }
done
"$PYTHON" -m compileall -q "$folder/programs"
for module in torch_values torch_model torch_cuda_ranks torch_cuda_graphs; do grep -q "compiled $module" "$folder/run"; done

# To compile it all takes too long for a test.
headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
for source in "$folder"/src/frameworks/python/*.cc; do c++ -std=c++20 -E "-I$folder/src" "-I$headers" "$source" -o /dev/null; done
[[ $("$folder/bin/annulus-run" --no-prefix -np 2 bash -c 'echo rank') == $'rank\nrank' ]]
