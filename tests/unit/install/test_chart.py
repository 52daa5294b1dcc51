"""The Helm chart makes of the same files the same objects: what its one template replaces, done as Helm would.

`make test-chart` asks Helm itself, which takes minutes to build.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from zonewise.install.components import InstallComponent, InstallMode, ManifestValues, documents, file_names

CHART = Path(__file__).parents[3] / "deploy/chart"
TEMPLATE = (CHART / "templates/zonewise.yaml").read_text()
VALUES = ManifestValues(image="registry.example.com/z:1", namespace="here", replicas=3, api_server=("10.0.0.9", 443))
GIVEN = {
    "$.Values.image": VALUES.image,
    "$.Values.replicas": VALUES.replicas,
    "$.Values.apiServer.host": VALUES.api_server[0],
    "$.Values.apiServer.port": VALUES.api_server[1],
    "$.Release.Namespace": VALUES.namespace,
}
QUOTED = r'"(?:[^"\\]|\\.)*"'
REPLACING = re.compile(rf"regexReplaceAll ({QUOTED}) \$text (?:\(printf ({QUOTED}) (\S+)\)|(\S+)) }}}}")


def replaced(text: str) -> str:
    found = REPLACING.findall(TEMPLATE)
    assert len(found) == TEMPLATE.count("regexReplaceAll")
    for pattern, form, value, plain in found:
        shown = str(GIVEN[value or plain])
        if form:
            shown = json.loads(form).replace("%q", json.dumps(shown)).replace("%v", shown).replace("%s", shown)
        text = re.sub(json.loads(pattern), shown.replace("${1}", r"\g<1>"), text)
    return text


@pytest.mark.parametrize("mode", InstallMode)
@pytest.mark.parametrize("component", InstallComponent)
def test_the_chart_makes_what_install_applies(component: InstallComponent, mode: InstallMode) -> None:
    assert '$files = list "tdb.yaml" "disruption.yaml"' in TEMPLATE
    rendered = [
        yaml.safe_load(document)
        for name in file_names(component, mode)
        for document in replaced((CHART / "manifests" / name).read_text()).split("\n---\n")
        if not re.search(r"(?m)^kind: Namespace$", document)
    ]
    assert rendered == [each for each in documents([component], mode, VALUES) if each["kind"] != "Namespace"]
