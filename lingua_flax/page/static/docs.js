// @ts-ignore: the script before this one in docs.html defines it
SwaggerUIBundle({ url: "openapi.json", dom_id: "#interface" });
